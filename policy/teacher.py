"""The scripted player: kernels for a task's operator graph with random schedules, and whole sessions around them.

It is the source of supervised data and a control for the pipeline. It writes what `policy/rowcode.py` can express, which is
everything that `data/operators.py` composes along rows; for other graphs it raises ValueError and says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from random import Random

from data.records import Candidate, Task
from data.trace import trace
from policy import kernels_cpp
from policy.kernels_cpp import Schedule
from policy.prompt import Prompt, Segment, call_text
from policy.rowcode import Program, program

SCHEDULES = (
    Schedule(fuse=True, real="float"),
    Schedule(fuse=False, real="float"),
    Schedule(fuse=True, real="double"),
    Schedule(fuse=False, real="double"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """A first version: the plan line and the files in the order of writing."""

    plan: str
    candidate: Candidate

    def action(self, *, then: str | None = "verify") -> str:
        """The text of the turn that writes it, with a closing call of the tool `then`."""
        calls = [call_text("write", path=path, content=content) for path, content in self.candidate.files.items()]
        return "\n".join([self.plan, *calls, *([call_text(then)] if then else [])])


class Teacher:
    """Writes candidates. seed: of everything random. weights: of the schedules in `SCHEDULES` (equal by default)."""

    def __init__(self, seed: int, *, format: str = "cuda_extension", backend: str = "cpp", weights: tuple[float, ...] | None = None):
        if (format, backend) != ("cuda_extension", "cpp"):
            raise ValueError(f"teacher: got {format} on {backend}, wanted cuda_extension on cpp")
        self.seed, self.format, self.backend, self.weights = seed, format, backend, weights

    def program(self, task: Task) -> Program:
        """The task as row code. Raises ValueError where the teacher cannot write it."""
        return program(trace(task.source, task.mode))

    def versions(self, task: Task, rng: Random, schedule: Schedule | None = None) -> Written:
        """A correct first version under a random schedule, or under `schedule`."""
        chosen = schedule or rng.choices(SCHEDULES, self.weights)[0]
        row = self.program(task)
        files = {"kernels/kernel.cpp": kernels_cpp.kernel(row, chosen), "model_new.py": kernels_cpp.module(row, task.source)}
        return Written(plan=chosen.plan, candidate=Candidate(format=self.format, files=files))

    def write(self, task: Task, rng: Random) -> Candidate:
        """A correct candidate under a random schedule. Raises ValueError where the teacher cannot write the task."""
        return self.versions(task, rng).candidate


def sessions_text(
    tasks: Iterable[Task],
    seed: int,
    *,
    prompt: Prompt,
    format: str = "cuda_extension",
    backend: str = "cpp",
    weights: tuple[float, ...] | None = None,
) -> Iterator[tuple[list[Segment], str]]:
    """(opening segments, action text) of one first turn a task, without running anything. Tasks it cannot write are left out."""
    teacher = Teacher(seed, format=format, backend=backend, weights=weights)
    for index, task in enumerate(tasks):
        rng = Random(f"teacher {seed} {index} {task.id}")
        try:
            written = teacher.versions(task, rng)
        except ValueError:
            continue
        yield prompt.opening(task), written.action()
