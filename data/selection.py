"""Which tasks are worth training on: named rules, each dropped task with its rule and figures, and the split by operator signature.

`screen` asks what can be known without running a task, `accept` what the judge measured. A measurement is anything with the fields
`eager_ms, compile_ms, floor_ms, environment, invalid, controls, output_bytes, input_bytes` (sandbox.judge.measure gives one).
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Protocol

from data.records import Baselines, Record, Task
from data.similarity import normalise, similarity, tree_tokens
from data.trace import fingerprint, trace

log = logging.getLogger(__name__)


class Measured(Protocol):
    """What `accept` reads of a measurement."""

    eager_ms: float | None
    compile_ms: float | None
    floor_ms: float | None
    environment: dict[str, Any]
    invalid: str | None
    controls: dict[str, bool]
    output_bytes: int
    input_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropped(Record):
    """A task that a rule dropped. Example: Dropped(task="1f..", rule="too_fast", figures={"eager_ms": 0.1, "min_ms": 0.5})"""

    task: str
    rule: str
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    operators: tuple[str, ...] = ()


def _drop(task: Task, rule: str, **figures: Any) -> Dropped:
    return Dropped(task=task.id, rule=rule, figures=figures, operators=task.operators)


# ------------------------------------------------------------------------------------ without running


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fingerprint(Record):
    """What must be known of an exam's problem to keep tasks away from it; holds no text of it."""

    origin: str
    tokens: tuple[str, ...]
    """`similarity.tree_tokens` of its source."""
    operators: tuple[str, ...]
    """Traced; empty where it cannot be traced."""


def fingerprints(exam: Iterable[Task]) -> list[Fingerprint]:
    """Fingerprints of an exam's problems; one that cannot be traced is named in the log and compared by its tree alone."""
    made = []
    for problem in exam:
        operators = problem.operators
        if not operators:
            try:
                operators = trace(problem.source, problem.mode).operators
            except ValueError as error:
                log.warning("%s: compared by its syntax tree only: %s", problem.origin, error)
        made.append(Fingerprint(origin=problem.origin, tokens=tree_tokens(problem.source), operators=operators))
    return made


def dedupe(tasks: Sequence[Task]) -> tuple[list[Task], list[Dropped]]:
    """The first of each set of equal tasks. Rules: `duplicate` (same id), `near_duplicate` (same source but for names, comments and
    layout, or the same traced graph with the same shapes and constants)."""
    kept: list[Task] = []
    dropped: list[Dropped] = []
    seen: dict[Any, str] = {}
    for task in tasks:
        keys: list[Any] = [task.id, (normalise(task.source), task.mode, task.precision)]
        try:
            keys.append((fingerprint(trace(task.source, task.mode)), task.mode, task.precision))
        except ValueError:
            log.debug("task %s cannot be traced: compared by its source", task.id)
        first = next((key for key in keys if key in seen), None)
        if first is None:
            kept.append(task)
            seen.update(dict.fromkeys(keys, task.id))
        else:
            dropped.append(_drop(task, "duplicate" if first == task.id else "near_duplicate", of=seen[first]))
    return kept, dropped


def screen(tasks: Sequence[Task], *, exam: Sequence[Fingerprint] = (), most_similar: float = 0.9) -> tuple[list[Task], list[Dropped]]:
    """Tasks whose label is what their code does, each once, none like a problem of the exam.

    Rules: `untraceable`, `label` (declared operators differ from the traced ones), `duplicate`, `near_duplicate`, `exam_signature`
    (same operators in the same order as a problem), `exam_similar` (syntax trees more alike than `most_similar`; paper: 0.9).
    """
    dropped: list[Dropped] = []
    labelled: list[Task] = []
    for task in tasks:
        try:
            traced = trace(task.source, task.mode).operators
        except ValueError as error:
            dropped.append(_drop(task, "untraceable", error=str(error)))
            continue
        if traced != task.operators:
            dropped.append(_drop(task, "label", traced=list(traced)))
        else:
            labelled.append(task)
    unique, repeated = dedupe(labelled)
    dropped += repeated
    signatures = {f.operators: f.origin for f in exam if f.operators}
    kept: list[Task] = []
    for task in unique:
        if task.operators in signatures:
            dropped.append(_drop(task, "exam_signature", problem=signatures[task.operators]))
            continue
        tokens = tree_tokens(task.source)
        scores = ((similarity(tokens, f.tokens, at_least=most_similar), f.origin) for f in exam)
        score, origin = max(scores, default=(0.0, ""))
        if score > most_similar:
            dropped.append(_drop(task, "exam_similar", problem=origin, similarity=round(score, 4), most=most_similar))
        else:
            kept.append(task)
    return kept, dropped


# ---------------------------------------------------------------------------------------- by measuring


def verdict_on(task: Task, measurement: Measured, *, min_ms: float, max_ms: float, memory_bytes: int, need_compile: bool) -> Dropped | None:
    """The first rule that drops `task`, or None.

    Rules in order: `invalid` (the judge refuses the task), `control` (a kernel that does no work would pass, or the outputs do not
    repeat), `no_compile` (torch.compile fails and is needed), `too_fast`, `too_slow` (eager outside [min_ms, max_ms]), `memory`.
    """
    if measurement.invalid is not None or measurement.eager_ms is None:
        return _drop(task, "invalid", reason=measurement.invalid or "no eager time")
    lost = sorted(name for name, held in measurement.controls.items() if not held)
    if lost:
        return _drop(task, "control", controls=lost)
    if need_compile and measurement.compile_ms is None:
        return _drop(task, "no_compile", eager_ms=measurement.eager_ms)
    if measurement.eager_ms < min_ms:
        return _drop(task, "too_fast", eager_ms=measurement.eager_ms, min_ms=min_ms)
    if measurement.eager_ms > max_ms:
        return _drop(task, "too_slow", eager_ms=measurement.eager_ms, max_ms=max_ms)
    if measurement.input_bytes + measurement.output_bytes > memory_bytes:
        return _drop(task, "memory", bytes=measurement.input_bytes + measurement.output_bytes, memory_bytes=memory_bytes)
    return None


def accept(
    tasks: Sequence[Task],
    measurements: Sequence[Measured],
    *,
    min_ms: float,
    max_ms: float,
    memory_bytes: int = 4 << 30,
    need_compile: bool = False,
) -> tuple[list[Task], list[Dropped]]:
    """Tasks that no rule of `verdict_on` drops, with their baselines and floor, and the others."""
    if not 0 <= min_ms < max_ms:
        raise ValueError(f"min_ms: got {min_ms} with max_ms = {max_ms}, wanted 0 <= min_ms < max_ms")
    kept, dropped = [], []
    for task, measurement in zip(tasks, measurements, strict=True):
        why = verdict_on(task, measurement, min_ms=min_ms, max_ms=max_ms, memory_bytes=memory_bytes, need_compile=need_compile)
        if why is None:
            kept.append(with_baselines(task, measurement))
        else:
            dropped.append(why)
    return kept, dropped


def with_baselines(task: Task, measurement: Measured) -> Task:
    """`task` with the times that were measured; its id stays. Raises ValueError for a measurement without an eager time."""
    if measurement.eager_ms is None:
        raise ValueError(f"measurement: got none for task {task.id} ({measurement.invalid}), wanted an eager time")
    baselines = Baselines(eager_ms=measurement.eager_ms, compile_ms=measurement.compile_ms, environment=measurement.environment)
    return dataclasses.replace(task, baselines=baselines, floor_ms=measurement.floor_ms)


def by_rule(dropped: Iterable[Dropped]) -> dict[str, int]:
    """How many tasks each rule dropped, most first."""
    return dict(collections.Counter(d.rule for d in dropped).most_common())


# ----------------------------------------------------------------------------------------------- split


def signature_split(tasks: Sequence[Task], *, test: int, validation: int, seed: int) -> list[Task]:
    """All tasks with their split set, in the order given: `test` and `validation` tasks held out by operator signature, the rest train.

    All tasks of one signature get the same split. Where the sizes of the groups do not add up exactly, a held-out split is smaller than
    asked and the log says so. Raises ValueError when nothing would be left to train on or a held-out split stays empty.
    """
    if min(test, validation) < 0 or test + validation >= len(tasks):
        raise ValueError(f"test, validation: got {test} and {validation} of {len(tasks)} tasks, wanted some left to train on")
    groups: dict[tuple[str, ...], int] = dict(sorted(collections.Counter(task.operators for task in tasks).items()))
    order = list(groups)
    Random(f"split {seed}").shuffle(order)
    split = dict.fromkeys(order, "train")
    for name, wanted in (("test", test), ("validation", validation)):
        room = wanted
        for signature in order:
            if split[signature] == "train" and groups[signature] <= room:
                split[signature] = name
                room -= groups[signature]
        if wanted and room == wanted:
            raise ValueError(f"{name}: got no operator signature with at most {wanted} tasks, wanted more different tasks")
        if room:
            log.warning("%s: %d of %d tasks held out, since the signatures' sizes do not add up", name, wanted - room, wanted)
    if "train" not in split.values():
        raise ValueError(f"tasks: got {len(groups)} operator signatures, all held out, wanted some left to train on")
    return [dataclasses.replace(task, split=split[task.operators]) for task in tasks]
