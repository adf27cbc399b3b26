"""Verdicts a second for groups of candidates as a trainer sends them: 20 % do not compile, 20 % are wrong, 60 % are right.

    python -m sandbox.study.capacity --out FOLDER --seconds 120 --backend cuda

Baselines are stored before the clock starts; every verdict is fresh (the full number of checked calls). After each group its right
candidates are asked again as an episode would, which the pool answers from its cache: counted apart, never in the rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import subprocess
import sys
import threading
import time

from sandbox.backends import Limits
from sandbox.study import kernels
from sandbox.study.run import Study, figure, parser, quantile, start

TARGETS = {"cuda": {"plan": 4.0, "cupy": 1.0, "triton": 1.0, "cuda_extension": 1.0}, "cpp": {}}
LIMITS = Limits(call_s=3.0, build_s=60.0, total_s=60.0)


class GpuMeter:
    """Share of time in which a kernel ran, sampled by nvidia-smi while entered; None without it."""

    def __init__(self, wanted: bool):
        self.samples: list[float] = []
        self.process = None
        if wanted:
            with contextlib.suppress(FileNotFoundError):
                command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
                self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if re.fullmatch(r"\s*\d+\s*", line):
                self.samples.append(float(line) / 100)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def idle(self) -> float | None:
        return round(1 - sum(self.samples) / len(self.samples), 3) if self.samples else None


async def work(study: Study) -> tuple[list[dict], bool]:
    backend, options = study.options.backend, study.options
    operations = kernels.OPERATIONS[: options.tasks]
    todo = [(f, o, r) for r in range(options.rounds) for o in operations for f in options.formats]
    todo = [(f, o, r) for f, o, r in todo if not study.has(f"group/{f}/{o.name}/{r}")]
    longest = 0.0
    if todo:
        async with study.pool(limits=LIMITS) as pool:
            while todo and study.left() > longest:
                format, operation, turn = todo.pop(0)
                begin = time.monotonic()
                await one_group(study, pool, format, operation, turn, backend)
                longest = max(longest, time.monotonic() - begin)
    return figures(study), not todo


async def one_group(study: Study, pool, format: str, operation, turn: int, backend: str) -> None:
    task, _ = await study.with_baselines(pool, kernels.task_of(operation, backend))
    if task is None:
        raise ValueError(f"task {operation.name}: invalid on this machine, wanted a sound one")
    group = kernels.group(operation, backend=backend, format=format, size=study.options.group, first=turn * study.options.group)
    before, seconds = pool.usage(), {}

    async def judge(index: int, candidate):
        begin = time.monotonic()
        verdict = await pool.judge(task, candidate, fresh=True)
        seconds[index] = time.monotonic() - begin
        return verdict

    with GpuMeter(backend == "cuda") as meter:
        begin = time.monotonic()
        verdicts = await asyncio.gather(*(judge(i, c) for i, (_, c) in enumerate(group)))
        took = time.monotonic() - begin
    after = pool.usage()
    # What an episode asks again about files that it has seen a verdict on
    begin = time.monotonic()
    right = [c for (kind, c), v in zip(group, verdicts, strict=True) if kind == "right"]
    again = await asyncio.gather(*(pool.judge(task, c, fresh=False) for c in right))
    hits = pool.usage()["cached"] - after["cached"]
    wrong = [
        {"kind": kind, "number": i, "status": v.status.value, "reason": v.reason}
        for i, ((kind, _), v) in enumerate(zip(group, verdicts, strict=True))
        if v.status.value not in kernels.WANTED[kind]
    ]
    stages = {s: round(sum(v.stages_s.get(s, 0.0) for v in verdicts), 3) for s in ("check", "build", "prepare", "run")}
    study.add(
        f"group/{format}/{operation.name}/{turn}", format=format, verdicts=len(verdicts), seconds=round(took, 3), busy_s=round(after["busy_s"] - before["busy_s"], 3),
        slots=int(after["slots"]), sandbox_errors=int(after["sandbox_errors"] - before["sandbox_errors"]), gpu_idle=meter.idle, latency_s=[round(seconds[i], 3) for i in sorted(seconds)],
        stages_s=stages, eager_ms=task.baselines.eager_ms, unexpected=wrong, asked_again=len(again), cache_hits=int(hits), again_s=round(time.monotonic() - begin, 4),
    )  # fmt: skip


def figures(study: Study) -> list[dict]:
    found = []
    for format in study.options.formats:
        rows = [row for row in study.of("group") if row["format"] == format]
        if not rows:
            continue
        seconds, count = sum(r["seconds"] for r in rows), sum(r["verdicts"] for r in rows)
        wanted = TARGETS[study.options.backend].get(format)
        rate = count / seconds
        found.append(
            figure(f"verdicts a second, {format}", round(rate, 2), f"at least {wanted:g}" if wanted else None, rate >= wanted if wanted else None,
                   verdicts=count, seconds=round(seconds, 1), slots=rows[-1]["slots"], eager_ms=[round(r["eager_ms"], 2) for r in rows])
        )  # fmt: skip
        latency = [s for r in rows for s in r["latency_s"]]
        stages = {s: round(sum(r["stages_s"][s] for r in rows) / count, 3) for s in rows[0]["stages_s"]}
        found.append(figure(f"latency within a group, {format}, s (median, 95 %)", [quantile(latency, 0.5), quantile(latency, 0.95)], None, None, stages_s=stages))
        idle = 1 - sum(r["busy_s"] for r in rows) / sum(r["seconds"] * r["slots"] for r in rows)
        found.append(figure(f"idle share of slots, {format}", round(idle, 3), None, None))
        gpu = [(r["gpu_idle"], r["seconds"]) for r in rows if r["gpu_idle"] is not None]
        if gpu:
            found.append(figure(f"idle share of the GPU, {format}", round(sum(i * s for i, s in gpu) / sum(s for _, s in gpu), 3), None, None))
        asked, hits = sum(r["asked_again"] for r in rows), sum(r["cache_hits"] for r in rows)
        found.append(figure(f"cache hits of those asked again, {format}", f"{hits} of {asked}", "all", hits == asked))
        unexpected = [u for r in rows for u in r["unexpected"]]
        found.append(figure(f"verdicts other than the candidate deserves, {format}", len(unexpected), "0", not unexpected, which=unexpected[:10]))
        errors = sum(r["sandbox_errors"] for r in rows)
        found.append(figure(f"SandboxErrors, {format}", errors, "0", errors == 0))
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parser("capacity", __doc__.splitlines()[0])
    options.add_argument("--formats", default=None, metavar="F,F", help="default: all of the backend")
    options.add_argument("--group", type=int, default=16, help="candidates a task (default %(default)s)")
    options.add_argument("--tasks", type=int, default=len(kernels.OPERATIONS), help="tasks a format (default %(default)s)")
    options.add_argument("--rounds", type=int, default=1, help="groups a task (default %(default)s)")
    chosen = options.parse_args(arguments)
    chosen.formats = chosen.formats.split(",") if chosen.formats else list(kernels.FORMATS[chosen.backend])
    unknown = set(chosen.formats) - set(kernels.FORMATS[chosen.backend])
    if unknown:
        print(f"sandbox.study.capacity: --formats: got {', '.join(sorted(unknown))}, wanted of {', '.join(kernels.FORMATS[chosen.backend])}", file=sys.stderr)
        return 2
    setting = {"backend": chosen.backend, "group": chosen.group, "limits": dataclasses.asdict(LIMITS)}
    return start(lambda o: Study(o, setting=setting), work, chosen)


if __name__ == "__main__":
    sys.exit(main())
