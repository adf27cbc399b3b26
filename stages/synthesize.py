"""Make new tasks: compositions of operators, written as a person would write them. Nothing is measured here.

`synthesize.families` may name the hand-written ones, torch.* and transformers.* ones found by introspection, torch or transformers.
"""

from __future__ import annotations

import collections
import dataclasses

from stages.stage import Job, main


def run(job: Job) -> None:
    from data.store import write_tasks
    from data.synthesis import synthesize

    tasks = synthesize(**dataclasses.asdict(job.params.synthesize))
    write_tasks(job.out("artifacts/tasks/raw") / "tasks.parquet", tasks)
    signatures = len({task.operators for task in tasks})
    job.summary = {
        "headline": f"{len(tasks)} tasks, {signatures} operator signatures",
        "figures": {"tasks": len(tasks), "signatures": signatures},
        "regimes": dict(collections.Counter(task.regime for task in tasks)),
    }


if __name__ == "__main__":
    main(__file__, run)
