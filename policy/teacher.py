"""The scripted player: kernels for a task's operator graph with random schedules, and whole sessions around them.

It is the source of supervised data and a control for the pipeline. It writes what `policy/rowcode.py` can express, which is
everything that `data/operators.py` composes along rows; for other graphs it raises ValueError and says why.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from random import Random

from data.records import Candidate, Task
from data.trace import Graph, trace
from policy import kernels_cpp, kernels_cuda
from policy.kernels_cpp import Schedule
from policy.prompt import Prompt, Segment, call_text
from policy.rowcode import Program, program
from policy.sampler import Completion

SCHEDULES = (
    Schedule(fuse=True, real="float"),
    Schedule(fuse=False, real="float"),
    Schedule(fuse=True, real="double"),
    Schedule(fuse=False, real="double"),
)
WEIGHTS = (0.8, 0.0, 0.2, 0.0)
"""Shares of the draws: a choice that a clock can tell apart, mostly right, and no more text than that. Split loops cost little while
rows stay in cache."""


FORMATS = (("cuda_extension", "cpp"), ("plan", "cuda"), ("cupy", "cuda"))
"""Format and backend of what the teacher writes."""
FAST_ENOUGH = 1.05
"""Speed-up over eager below which a session goes on to another schedule."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scripted(Completion):
    """A teacher's turn: text only."""

    trainable: bool = True
    """False where the turn holds a planted mistake."""


def _says(text: str, *, trainable: bool = True) -> Scripted:
    return Scripted(ids=None, logprobs=None, text=text, finish_reason="stop", policy_version="teacher", trainable=trainable)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """A version: its schedule, and the files in the order of writing."""

    schedule: Schedule
    candidate: Candidate

    @property
    def plan(self) -> str:
        return self.schedule.plan

    def action(self, *, only: list[str] | None = None, then: str | None = "verify") -> str:
        """The text of the turn that writes it (or its files `only`), with a closing call of the tool `then`."""
        files = {path: text for path, text in self.candidate.files.items() if only is None or path in only}
        calls = [call_text("write", path=path, content=content) for path, content in files.items()]
        return "\n".join([self.plan, *calls, *([call_text(then)] if then else [])])


class Teacher:
    """Writes candidates. seed: of everything random.

    says: each operator of a C++ kernel stands behind a comment with its line of the task's listing. Longer, but a small model learns
    it from fewer steps, since what to translate next stands beside it.
    """

    def __init__(
        self,
        seed: int,
        *,
        format: str = "cuda_extension",
        backend: str = "cpp",
        says: bool = False,
    ):
        if (format, backend) not in FORMATS:
            raise ValueError(f"teacher: got {format} on {backend}, wanted {', '.join(f'{f} on {b}' for f, b in FORMATS)}")
        self.seed, self.format, self.backend, self.says = seed, format, backend, says

    def program(self, task: Task) -> Program:
        """The task as row code. Raises ValueError where the teacher cannot write it."""
        return program(trace(task.source, task.mode))

    def schedules(self, row: Program, graph: Graph) -> tuple[Schedule, ...]:
        """What it draws from; the first is the one to fall back on."""
        return SCHEDULES if self.backend == "cpp" else kernels_cuda.launches(row, graph)

    def versions(self, task: Task, rng: Random, schedule: Schedule | None = None, *, best: bool = False) -> Written:
        """A correct version under a random schedule, under `schedule`, or under the one to fall back on."""
        graph = trace(task.source, task.mode)
        row = program(graph)
        able = self.schedules(row, graph)
        chosen = schedule or (able[0] if best else rng.choices(able, WEIGHTS if self.backend == "cpp" else None)[0])
        if self.format == "plan":
            files = kernels_cuda.plan_files(row, chosen, graph)
        elif self.format == "cupy":
            files = kernels_cuda.cupy_files(row, chosen, graph, task.source)
        else:
            files = {
                "kernels/kernel.cpp": kernels_cpp.kernel(row, chosen, says=self.says),
                "model_new.py": kernels_cpp.module(row, task.source),
            }
        return Written(schedule=chosen, candidate=Candidate(format=self.format, files=files))

    def write(self, task: Task, rng: Random) -> Candidate:
        """A correct candidate under a random schedule. Raises ValueError where the teacher cannot write the task."""
        return self.versions(task, rng).candidate

    def session(self, task: Task, seed: int = 0, *, mistakes: float = 0.3, improve: bool = True) -> Callable[..., Awaitable[Completion]]:
        """A `generate` callable that plays one whole episode of `task`.

        First turn: plan line, files, verify; with probability `mistakes` the files hold a planted mistake and the turn is not
        trainable. Then, after what the workspace really answers: the repair, or, when it is no faster than eager and `improve`
        holds, the same under a fast schedule, or submit. Raises ValueError (on the first turn) where the teacher cannot write the task.
        """
        rng = Random(f"session {self.seed} {seed} {task.id}")
        state: dict[str, Written | None] = {"right": None, "shown": None}

        async def generate(segments: list[Segment], *, max_new_tokens: int, seed: int) -> Completion:
            answer = segments[-1].text
            right, shown = state["right"], state["shown"]
            if right is None:
                right = state["right"] = state["shown"] = self.versions(task, rng)
                if rng.random() >= mistakes:
                    return _says(right.action())
                wrong = plant(right.candidate, rng)
                state["shown"] = dataclasses.replace(right, candidate=wrong)
                return _says(state["shown"].action(), trainable=False)
            if shown.candidate != right.candidate and not answer_is_correct(answer):
                state["shown"] = right
                changed = [path for path, text in right.candidate.files.items() if shown.candidate.files.get(path) != text]
                return _says(right.action(only=changed))
            slow = answer_is_correct(answer) and (speed_over_eager(answer) or 9.0) < FAST_ENOUGH
            better = self.versions(task, rng, best=True) if improve and slow else right
            if better.schedule != right.schedule:
                state["right"] = state["shown"] = better
                changed = [path for path, text in better.candidate.files.items() if right.candidate.files[path] != text]
                return _says(better.action(only=changed))
            return _says(call_text("submit"))

        return generate


def answer_is_correct(observation: str) -> bool:
    """Whether the last line of an observation is the report of a correct candidate."""
    return observation.strip().rpartition("\n")[2].startswith("correct")


def speed_over_eager(observation: str) -> float | None:
    """The speed-up over eager that a report names; None where it names none."""
    found = re.search(r"([\d.e+-]+)x eager", observation)
    return float(found.group(1)) if found else None


def plant(candidate: Candidate, rng: Random) -> Candidate:
    """The candidate with one mistake of a random kind: syntax, bound, constant, operator, missing line, wrong call.

    Kinds that do not apply to these files are passed over; the result always differs.
    """
    code, call = CODE[candidate.format]
    for kind in rng.sample(MISTAKES, len(MISTAKES)):
        name = call if kind is _wrong_call else code
        changed = kind(candidate.files[name], rng)
        if changed is not None and changed != candidate.files[name]:
            return dataclasses.replace(candidate, files=candidate.files | {name: changed})
    raise AssertionError("no kind of mistake applies")


CODE = {
    "cuda_extension": ("kernels/kernel.cpp", "model_new.py"),
    "plan": ("kernels.cu", "plan.json"),
    "cupy": ("model_new.py", "model_new.py"),
}
"""Where the kernel and where its call stands."""


def _element_lines(lines: list[str]) -> list[int]:
    return [i for i, line in enumerate(lines) if line.startswith("v = ")]


def _on_element_line(text: str, rng: Random, change: Callable[[str], str]) -> str | None:
    """`change` applied to a random line of an element-wise operator that it alters."""
    lines = text.splitlines()
    able = [i for i in _element_lines(lines) if change(lines[i]) != lines[i]]
    if not able:
        return None
    at = rng.choice(able)
    lines[at] = change(lines[at])
    return "\n".join(lines) + "\n"


def _syntax(text: str, rng: Random) -> str | None:
    ends = [m.start() for m in re.finditer(r";", text)]
    at = rng.choice(ends)
    return text[:at] + text[at + 1 :]


def _bound(text: str, rng: Random) -> str | None:
    return rng.choice((text.replace("j < n;", "j < n - 1;"), text.replace("j = 0;", "j = 1;"), text.replace("o[i + j]", "o[j]")))


def _constant(text: str, rng: Random) -> str | None:
    factor = rng.choice((10, 0.1, -1))

    def change(line: str) -> str:
        return re.sub(r"\d+(?:\.\d+)?f?\b", lambda m: f"{float(m.group().rstrip('f')) * factor + 1:g}", line, count=1)

    return _on_element_line(text, rng, change)


def _operator(text: str, rng: Random) -> str | None:
    swaps = (
        ("fmaxf", "fminf"),
        ("fminf", "fmaxf"),
        (" + ", " - "),
        (" * ", " + "),
        (" / ", " * "),
        ("tanhf", "expf"),
        ("sinf", "cosf"),
        ("cosf", "sinf"),
    )
    old, new = rng.choice(swaps)
    return _on_element_line(text, rng, lambda line: line.replace(old, new, 1))


def _missing(text: str, rng: Random) -> str | None:
    lines = text.splitlines()
    able = _element_lines(lines)
    if not able:
        return None
    del lines[rng.choice(able)]
    return "\n".join(lines) + "\n"


def _wrong_call(text: str, rng: Random) -> str | None:
    swaps = (
        ("            x,\n", ""),
        (".shape[-1])", ".shape[0])"),
        ("            o, ", "            "),
        ('"x0", "y0"', '"y0"'),
        ("m // n", "m // n + 1"),
        ("o.data_ptr(), ", ""),
    )
    able = [(old, new) for old, new in swaps if old in text]
    old, new = rng.choice(able) if able else ("", "")
    return text.replace(old, new, 1) if able else None


MISTAKES = (_syntax, _bound, _constant, _operator, _missing, _wrong_call)


def sessions_text(
    tasks: Iterable[Task],
    seed: int,
    *,
    prompt: Prompt,
    format: str = "cuda_extension",
    backend: str = "cpp",
    says: bool = False,
) -> Iterator[tuple[list[Segment], str]]:
    """(opening segments, action text) of one first turn a task, without running anything. Tasks it cannot write are left out."""
    teacher = Teacher(seed, format=format, backend=backend, says=says)
    for index, task in enumerate(tasks):
        rng = Random(f"teacher {seed} {index} {task.id}")
        try:
            written = teacher.versions(task, rng)
        except ValueError:
            continue
        yield prompt.opening(task), written.action()
