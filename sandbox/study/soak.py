"""A long stream of candidates, a third of them hostile: what is lost, what is left behind, and whether honest ones are judged as alone.

    python -m sandbox.study.soak --out FOLDER --count 1000 --seconds 380 [--backend cuda]

First every honest kernel is judged alone, `--alone` times. Then the stream, in an order fixed by --seed, all slots busy; in runs as
long as --seconds allows. After each run the pool is closed and everything that a candidate may have left is looked for: processes by
the candidates' uids or by their marker, files by marker or uid, System V segments, GPU memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from data.records import SandboxError
from sandbox.backends import Limits
from sandbox.confine import FIRST_UID
from sandbox.study import kernels
from sandbox.study.run import Study, figure, parser, start

LIMITS = Limits(call_s=2.0, build_s=30.0, total_s=20.0, memory_bytes=2 << 30, processes=64, calls=32)
UIDS = range(FIRST_UID, FIRST_UID + 2048)
PLACES = ("/", "/tmp", "/dev/shm", "/var/tmp", "/root", "/home", "/etc", "/usr/lib", "/opt", "/run")
GPU_SLACK_MIB = 64
SAME_TIME = 0.05
"""Relative difference of an honest kernel's median time in the stream from alone."""


def plan(count: int, seed: int, backend: str, marker: str) -> list[dict]:
    """The stream: per place its kind, the candidate, the statuses that are right, and what tells honest ones apart."""
    rng, hostile = random.Random(seed), kernels.hostile_names(backend)
    formats, rows = kernels.FORMATS[backend], []
    thirds = ["hostile"] * (count // 3) + ["honest"] * (count // 3)
    rest = count - len(thirds)
    thirds += ["right"] * (rest // 3) + ["wrong"] * (rest // 3) + ["broken"] * (rest - 2 * (rest // 3))
    for i, kind in enumerate(thirds):
        format, operation = formats[i % len(formats)], kernels.OPERATIONS[i // len(formats) % 2]
        if kind == "hostile":
            name = hostile[i % len(hostile)]
            candidate, wanted = kernels.hostile(name, backend=backend, number=i, marker=marker)
            operation = kernels.OPERATIONS[0]
        else:
            # Honest ones come again and again, so that their times can be compared; the others are all different
            mistakes = {"wrong": kernels.WRONG, "broken": kernels.BROKEN}.get(kind)
            name = f"{format}/{operation.name}" if kind == "honest" else kind
            mistake = mistakes[i % len(mistakes)] if mistakes else None
            candidate = kernels.candidate_of(operation, backend=backend, format=format, number=1 if kind == "honest" else i, mistake=mistake)
            wanted = kernels.WANTED["right" if kind == "honest" else kind]
        rows.append({"kind": kind, "name": name, "operation": operation, "candidate": candidate, "wanted": wanted})
    rng.shuffle(rows)
    return rows


async def work(study: Study) -> tuple[list[dict], bool]:
    options, backend = study.options, study.options.backend
    marker = "soak-" + hashlib.sha256(str(study.folder.resolve()).encode()).hexdigest()[:12]
    stream = plan(options.count, options.seed, backend, marker)
    before = leftovers(marker, backend)
    tasks = {}
    async with study.pool(limits=LIMITS) as pool:
        for operation in {row["operation"].name: row["operation"] for row in stream}.values():
            tasks[operation.name], _ = await study.with_baselines(pool, kernels.task_of(operation, backend))
            if tasks[operation.name] is None:
                raise ValueError(f"task {operation.name}: invalid on this machine, wanted a sound one")
    honest = {row["name"]: row for row in stream if row["kind"] == "honest"}
    async with study.pool(limits=LIMITS, slots=1) as pool:
        for turn in range(options.alone):
            for name, row in honest.items():
                key = f"alone/{name}/{turn}"
                if not study.has(key) and study.left() > 5:
                    await judge(study, pool, key, row, tasks)
    todo = [(i, row) for i, row in enumerate(stream) if not study.has(f"stream/{i}")]
    async with study.pool(limits=LIMITS) as pool:
        places = iter(todo)

        async def run() -> None:
            while study.left() > 8 and (place := next(places, None)):
                await judge(study, pool, f"stream/{place[0]}", place[1], tasks)

        # One more than slots, so that none is idle while lines are written
        await asyncio.gather(*(run() for _ in range(len(pool.slots) + 1)))
        usage = pool.usage()
    after = await settled(marker, backend, before)
    left = {key: sorted(set(map(str, found)) - set(map(str, before[key]))) for key, found in after.items() if key != "gpu_mib"}
    grown = max(0, after["gpu_mib"][0] - before["gpu_mib"][0])
    number = len(study.of("run"))
    study.add(f"run/{number}", left=left, gpu_mib_grown=grown, usage={k: round(v, 2) for k, v in usage.items()})
    return figures(study, stream), all(study.has(f"stream/{i}") for i in range(len(stream)))


async def judge(study: Study, pool, key: str, row: dict, tasks: dict) -> None:
    begin, hostile = time.monotonic(), row["kind"] == "hostile"
    found: dict = {"kind": row["kind"], "name": row["name"]}
    try:
        verdict = await pool.judge(tasks[row["operation"].name], row["candidate"], fresh=True, policy="mixed" if hostile else "libraries_allowed")
        found |= {"status": verdict.status.value, "rule": verdict.rule, "reason": (verdict.reason or "")[:200], "as_wanted": verdict.status.value in row["wanted"]}
        if verdict.correct:
            own = (verdict.device_ms or verdict.times_ms)["candidate"]
            found |= {"ms": own, "eager": verdict.speedup and list(verdict.speedup["eager"]), "flags": list(verdict.flags)}
    except SandboxError as error:
        found |= {"status": "sandbox_error", "reason": str(error)[:300], "as_wanted": False}
    study.add(key, **found, seconds=round(time.monotonic() - begin, 3))


async def settled(marker: str, backend: str, before: dict) -> dict:
    """What is left once the kernel and the driver have had a few seconds to reap."""
    for _ in range(20):
        found = leftovers(marker, backend)
        clean = not any(set(map(str, found[k])) - set(map(str, before[k])) for k in found if k != "gpu_mib")
        if clean and found["gpu_mib"][0] - before["gpu_mib"][0] <= GPU_SLACK_MIB:
            break
        await asyncio.sleep(0.25)
    return found


def leftovers(marker: str, backend: str) -> dict[str, list]:
    """Processes, files and segments that belong to candidates, and the GPU memory in use (MiB, all of the host)."""
    processes, files = [], []
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                ours = path.stat().st_uid in UIDS and not _of_a_living_pool(path.name)
                if ours or marker.encode() in (path / "cmdline").read_bytes():
                    processes.append(f"{path.name} {(path / 'comm').read_text().strip()}")
            except OSError:
                continue
    import torch

    for top in {*PLACES, tempfile.gettempdir(), os.getcwd(), os.path.expanduser("~"), os.path.dirname(torch.__file__)}:
        try:
            entries = list(os.scandir(top))
        except OSError:
            continue
        for entry in entries:
            try:
                if marker in entry.name or entry.stat(follow_symlinks=False).st_uid in UIDS:
                    files.append(entry.path)
            except OSError:
                continue
    segments = [line.split()[1] for line in pathlib.Path("/proc/sysvipc/shm").read_text().splitlines()[1:] if int(line.split()[7]) in UIDS] if os.path.exists("/proc/sysvipc/shm") else []
    used = 0
    if backend == "cuda":
        listed = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
        used = sum(int(line) for line in listed.stdout.split() if line.isdigit())
    return {"processes": processes, "files": sorted(files), "segments": segments, "gpu_mib": [used]}


def _of_a_living_pool(pid: str) -> bool:
    """True where an ancestor is a zygote: this program's own pools are closed by now, what escaped from them has no such ancestor."""
    while pid not in ("0", "1"):
        fields = (pathlib.Path("/proc") / pid / "stat").read_text().rpartition(")")[2].split()
        pid = fields[1]
        if pid not in ("0", "1") and b"sandbox" in (pathlib.Path("/proc") / pid / "cmdline").read_bytes():
            return True
    return False


def figures(study: Study, stream: list[dict]) -> list[dict]:
    rows, runs = study.of("stream"), study.of("run")
    by = lambda *kinds: [r for r in rows if r["kind"] in kinds]
    errors = [r for r in rows if r["status"] == "sandbox_error"]
    odd = [r for r in rows if not r["as_wanted"]]
    found = [
        figure("candidates judged", len(rows), str(len(stream)), len(rows) >= len(stream) or None, hostile=len(by("hostile"))),
        figure("SandboxErrors", len(errors), "0", not errors, which=[(r["key"], r["name"], r["reason"]) for r in errors][:10]),
        figure("verdicts other than the candidate deserves", len(odd), "0", not odd, which=[(r["key"], r["name"], r["status"], r["reason"]) for r in odd][:20]),
        figure("hostile candidates credited", sum(r["status"] == "correct" for r in by("hostile")), "0", not any(r["status"] == "correct" for r in by("hostile"))),
    ]
    for what in ("processes", "files", "segments"):
        left = sorted({x for run in runs for x in run["left"][what]})
        found.append(figure(f"{what} left behind", len(left), "0", not left, which=left[:20]))
    if study.options.backend == "cuda":
        grown = max((run["gpu_mib_grown"] for run in runs), default=0)
        found.append(figure("GPU memory left in use, MiB", grown, f"at most {GPU_SLACK_MIB}", grown <= GPU_SLACK_MIB))
    alone, ratios, apart = study.of("alone"), {}, []
    for name in sorted({r["name"] for r in by("honest")}):
        mine = [r for r in alone if r["name"] == name and "ms" in r]
        there = [r for r in by("honest") if r["name"] == name and "ms" in r]
        if not mine or len(there) < 3:
            continue
        ratios[name] = round(statistics.median(r["ms"] for r in there) / statistics.median(r["ms"] for r in mine), 4)
        low, high = min(r["eager"][0] for r in mine if r["eager"]), max(r["eager"][2] for r in mine if r["eager"])
        apart += [r["key"] for r in there if r["eager"] and not (r["eager"][0] <= high and low <= r["eager"][2])]
    refused = [r["key"] for r in by("honest") if r["status"] != "correct"] + [r["key"] for r in alone if r["status"] != "correct"]
    found.append(figure("honest verdicts unlike alone", len(refused), "0", not refused, which=refused[:20]))
    if ratios:
        worst = max(ratios.values(), key=lambda v: abs(v - 1))
        found.append(figure("honest times over those alone, worst of medians", worst, f"within {SAME_TIME:.0%}", abs(worst - 1) <= SAME_TIME, by_kernel=ratios))
        count = len([r for r in by("honest") if "ms" in r])
        found.append(figure("honest speed-up intervals apart from those alone", f"{len(apart)} of {count}", "at most 5 %", len(apart) <= 0.05 * count, which=apart[:20]))
    busy = sum(r["seconds"] for r in rows)
    statuses: dict[str, dict[str, int]] = {}
    for r in rows:
        kind = f"{r['kind']} {r['name']}" if r["kind"] == "hostile" else r["kind"]
        statuses.setdefault(kind, {}).setdefault(r["status"], 0)
        statuses[kind][r["status"]] += 1
    wall = sum(run["usage"]["seconds"] for run in runs)
    found.append(figure("seconds", round(wall, 1), None, None, seconds_of_verdicts=round(busy, 1), runs=len(runs), statuses=statuses))
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parser("soak", __doc__.splitlines()[0])
    options.add_argument("--count", type=int, default=1000, help="candidates in the stream (default %(default)s)")
    options.add_argument("--alone", type=int, default=3, help="judgements of each honest kernel alone (default %(default)s)")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args(arguments)
    setting = {"backend": chosen.backend, "count": chosen.count, "seed": chosen.seed, "limits": dataclasses.asdict(LIMITS)}
    return start(lambda o: Study(o, setting=setting), work, chosen)


if __name__ == "__main__":
    sys.exit(main())
