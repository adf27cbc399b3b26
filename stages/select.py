"""Keep the tasks worth training on: traced, unlike each other, measured by the judge, split by operator signature.

Where tasks hold seeds of torch or transformers, they are kept away from KernelBench by its stored fingerprints too, and the test split
is held out by (family, regime) pair beside the signature.

Every dropped task stands in dropped.jsonl with its rule and figures. A task whose measurement we failed to make (SandboxError) is
dropped as `infra_error`, which says nothing about the task.
"""

from __future__ import annotations

import asyncio
import json

from data.journal import append_lines, read_lines
from data.records import SandboxError
from stages import judging
from stages.stage import Job, main


def run(job: Job) -> None:
    from data import selection
    from data.kernelbench import FINGERPRINTS
    from data.operators import FAMILIES
    from data.store import read_tasks, write_tasks
    from sandbox.judge import Measurement

    section, out = job.params.select, job.out("artifacts/tasks/selected")
    raw = read_tasks(job.root / "artifacts/tasks/raw/tasks.parquet")
    seeded = not set(job.params.synthesize.families) <= set(FAMILIES)
    screened, dropped = selection.screen(raw, exam=selection.read_fingerprints(FINGERPRINTS) if seeded else ())
    asyncio.run(measure(job, screened))
    rows = {row["task"]: row for row in read_lines(job.work / "measured.jsonl")}
    lost = [task for task in screened if rows[task.id]["lost"]]
    if len(lost) == len(screened):
        raise SandboxError(f"no task could be measured, the last because: {rows[lost[-1].id]['lost']}")
    dropped += [selection.Dropped(task=t.id, rule="infra_error", figures={"error": rows[t.id]["lost"]}, operators=t.operators) for t in lost]
    whole = [task for task in screened if not rows[task.id]["lost"]]
    measured = [Measurement.from_dict(rows[task.id]["measurement"]) for task in whole]
    kept, more = selection.accept(whole, measured, min_ms=section.min_ms, max_ms=section.max_ms, need_compile=seeded)
    sizes = {"test": section.test, "validation": section.validation, "seed": section.seed}
    if seeded:
        tasks, apart = selection.family_split(kept, **sizes)
        more += apart
    else:
        tasks = selection.signature_split(kept, **sizes)
    write_tasks(out / "tasks.parquet", tasks)
    (out / "dropped.jsonl").write_text("".join(json.dumps(drop.to_dict()) + "\n" for drop in dropped + more), encoding="utf-8")
    sizes = {name: sum(task.split == name for task in tasks) for name in ("train", "validation", "test")}
    why = ", ".join(f"{count} {rule}" for rule, count in selection.by_rule(dropped + more).items())
    job.summary = {
        "headline": f"{len(tasks)} of {len(raw)} tasks kept: {sizes['train']} train, {sizes['test']} held out" + (f"; dropped {why}" if why else ""),
        "figures": {"kept": len(tasks), "dropped": len(dropped + more), **sizes},
        "dropped": selection.by_rule(dropped + more),
    }


async def measure(job: Job, tasks) -> None:
    """One line a task in work/measured.jsonl; tasks that were measured are not measured again, lost ones are, and the last line counts."""
    path, section = job.work / "measured.jsonl", job.params.select
    worth = section.min_ms, section.max_ms  # the others are dropped
    known = {row["task"] for row in read_lines(path) if not row["lost"]}
    todo = [task for task in tasks if task.id not in known]
    done = len(tasks) - len(todo)
    async with judging.pool(job) as judges:

        async def one(task) -> None:
            nonlocal done
            row = {"task": task.id, "measurement": None, "lost": None}
            try:
                row["measurement"] = (await judges.measure(task, worth=worth)).to_dict()
            except SandboxError as error:
                row["lost"] = str(error)
            append_lines(path, [row])
            done += 1
            job.progress(done, len(tasks), "measured")

        async with asyncio.TaskGroup() as group:
            for task in todo:
                group.create_task(one(task))


if __name__ == "__main__":
    main(__file__, run)
