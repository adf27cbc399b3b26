"""Every KernelBench problem preflighted, and its own Model judged as a candidate: it must be correct, with a speed-up of 1.

    python -m sandbox.study.preflight --problems CLONE --out FOLDER --seconds 400 --backend cuda

Problems come in turn from the levels, so that a cut run says something of each. `--known` compares the degenerate list with that of
KERNELBENCH: problems whose outputs a candidate that does no work matches under KernelBench's fixed tolerance of 1e-4.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import sys
import time
import tokenize

from data import kernelbench
from data.records import Candidate, SandboxError, Task
from sandbox.backends import Limits
from sandbox.judge import format_of
from sandbox.study.run import Study, figure, parser, start

LIMITS = Limits(call_s=20.0, build_s=120.0, compile_s=0.0, total_s=240.0, memory_bytes=16 << 30)
SAME, WIDE = (0.99, 1.01), 0.03
KERNELBENCH = {
    "zeros": ("1/23", "1/37", "2/9", "2/23", "2/38", "2/80", "2/83"),
    "constant": ("2/36", "2/42", "2/65"),
    "stored output of other inputs": ("3/3", "3/7", "3/11", "3/12", "3/18", "3/28"),
}
"""What passes at KernelBench's fp32 tolerance without doing the work, by the cheapest way (level/problem)."""


def own_model(source: str) -> Candidate:
    """The problem's own Model under the name ModelNew, nothing else changed."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    renamed = [(t.type, "ModelNew" if t.type == tokenize.NAME and t.string == "Model" else t.string, t.start, t.end, t.line) for t in tokens]
    lines = source.splitlines(keepends=True)
    for kind, text, (row, column), (_, end), _ in reversed(renamed):
        if kind == tokenize.NAME and text == "ModelNew" and lines[row - 1][column:end] == "Model":
            lines[row - 1] = lines[row - 1][:column] + text + lines[row - 1][end:]
    files = {"model_new.py": "".join(lines)}
    return Candidate(format=format_of(files), files=files)


def name_of(task: Task) -> str:
    return task.origin.removeprefix("kernelbench/")


def in_turn(tasks: list[Task]) -> list[Task]:
    levels: dict[str, list[Task]] = {}
    for task in tasks:
        levels.setdefault(name_of(task).partition("/")[0], []).append(task)
    return [t for row in itertools.zip_longest(*levels.values()) for t in row if t is not None]


async def work(study: Study) -> tuple[list[dict], bool]:
    options = study.options
    numbers = [int(n) for n in options.numbers.split(",")] if options.numbers else None
    tasks = in_turn(kernelbench.load(options.problems, levels=options.levels, problems=numbers))
    todo = [t for t in tasks if not study.has(f"problem/{name_of(t)}")]
    async with study.pool(limits=LIMITS, policy="mixed") as pool:
        while todo and study.left() > 5:
            await one(study, pool, todo.pop(0))
    return figures(study, [name_of(t) for t in tasks]), not todo


async def one(study: Study, pool, task: Task) -> None:
    begin, row = time.monotonic(), {}
    try:
        measured = await pool.measure(task)
        row |= {"invalid": measured.invalid, "controls": measured.controls, "eager_ms": measured.eager_ms, "compile_ms": measured.compile_ms, "floor_ms": measured.floor_ms}
        row |= {"input_bytes": measured.input_bytes, "output_bytes": measured.output_bytes, "preflight_s": round(time.monotonic() - begin, 3)}
        if measured.invalid is None:
            # The same task, so that what was made ready is used
            verdict = await pool.judge(task, own_model(task.source), fresh=True)
            row |= {"status": verdict.status.value, "rule": verdict.rule, "reason": (verdict.reason or "")[:300], "flags": list(verdict.flags)}
            row |= {"eager": verdict.speedup and list(verdict.speedup["eager"]), "times_ms": verdict.times_ms}
    except SandboxError as error:
        row |= {"sandbox_error": str(error)[:300]}
    study.add(f"problem/{name_of(task)}", **row, seconds=round(time.monotonic() - begin, 3))


def degenerate(row: dict) -> bool:
    return "degenerate" in (row.get("invalid") or "") or not all(row.get("controls", {}).values())


def figures(study: Study, names: list[str]) -> list[dict]:
    rows = {r["key"].removeprefix("problem/"): r for r in study.of("problem")}
    rows = {n: rows[n] for n in names if n in rows}
    errors = {n: r["sandbox_error"] for n, r in rows.items() if "sandbox_error" in r}
    invalid = {n: r["invalid"] for n, r in rows.items() if r.get("invalid")}
    marked = sorted(n for n, r in rows.items() if degenerate(r))
    sound = {n: r for n, r in rows.items() if n not in errors and n not in invalid}
    wrong = {n: f"{r['status']}: {r['reason']}" for n, r in sound.items() if r["status"] != "correct"}
    timed = {n: r["eager"] for n, r in sound.items() if r.get("eager")}
    apart = {n: [round(v, 4) for v in i] for n, i in timed.items() if i[2] < SAME[0] or i[0] > SAME[1]}
    wide = {n: round(i[2] / i[0] - 1, 4) for n, i in timed.items() if i[2] / i[0] - 1 > WIDE}
    untimed = sorted(n for n, r in sound.items() if r["status"] == "correct" and not r.get("eager"))
    known = {n for listed in KERNELBENCH.values() for n in listed} & rows.keys()
    return [
        figure("problems preflighted", len(rows), str(len(names)), len(rows) == len(names) or None, seconds=round(sum(r["seconds"] for r in rows.values()), 1)),
        figure("SandboxErrors", len(errors), "0", not errors, which=errors),
        figure("problems refused as task_invalid", len(invalid), None, None, which=invalid),
        figure("degenerate problems", len(marked), None, None, which=marked, known=sorted(known & set(marked)),
               known_but_sound_here=sorted(known - set(marked)), not_known=sorted(set(marked) - known)),
        figure("sound problems whose own Model is correct", f"{len(sound) - len(wrong)} of {len(sound)}", "all", not wrong, which=wrong),
        figure("of these, speed-up interval overlaps [0.99, 1.01]", f"{len(timed) - len(apart)} of {len(timed)}", "all", not apart, which=apart, without_credit=untimed),
        figure("of these, interval at most 3 % wide", f"{len(timed) - len(wide)} of {len(timed)}", "all", not wide, which=wide),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    options = parser("preflight", __doc__.splitlines()[0], seconds=400)
    options.add_argument("--problems", required=True, metavar="FOLDER", help="a clone of KernelBench, or a folder with level1/1_name.py, ...")
    options.add_argument("--levels", type=lambda text: tuple(int(n) for n in text.split(",")), default=kernelbench.LEVELS, metavar="N,N")
    options.add_argument("--numbers", default=None, metavar="N,N", help="only the problems with these numbers")
    chosen = options.parse_args(arguments)
    return start(lambda o: Study(o, setting={"backend": chosen.backend, "limits": dataclasses.asdict(LIMITS)}), work, chosen)


if __name__ == "__main__":
    sys.exit(main())
