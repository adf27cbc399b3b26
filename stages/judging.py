"""The sandbox's pool as params.yaml asks for it: the one place where a stage opens it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from stages.stage import Job


def pool(job: Job, **changes: Any):
    """The sandbox's pool for the stage's `judge` section."""
    from sandbox.judge import Limits
    from sandbox.pool import Pool

    judge = job.params.judge
    limits = Limits(build_s=judge.build_s, call_s=judge.call_s, total_s=judge.total_s, calls=judge.calls)
    options = {"backend": judge.backend, "policy": judge.policy, "precision": judge.precision, "track": judge.track, "limits": limits}
    return Pool(**options, slots=job.params.machine.slots or None, **changes)


@contextlib.contextmanager
def launched(job: Job) -> Iterator[Any]:
    """The pool with its processes on their way up, for a stage that loads a model before it enters it."""
    judges = pool(job).launch()
    try:
        yield judges
    finally:
        judges.drop()
