"""Which tasks are worth training on: named rules, each dropped task with its rule and figures, and the split by operator signature.

`screen` asks what can be known without running a task, `accept` what the judge measured. A measurement is anything with the fields
`eager_ms, compile_ms, floor_ms, environment, invalid, controls, output_bytes, input_bytes` (sandbox.judge.measure gives one).
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import json
import logging
import os
import pathlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from data.families import family_of
from data.records import Baselines, Record, Task
from data.similarity import normalise, similarity, tree_tokens
from data.trace import Graph, fingerprint, trace

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
    tokens: tuple[int, ...]
    """`similarity.tree_tokens` of its source, each as a 32-bit checksum."""
    operators: tuple[str, ...]
    """Traced; empty where it cannot be traced."""


def hashed(tokens: Iterable[str]) -> tuple[int, ...]:
    """32-bit checksums of tokens: equal where the tokens are, and no text."""
    return tuple(zlib.crc32(token.encode()) for token in tokens)


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
        made.append(Fingerprint(origin=problem.origin, tokens=hashed(tree_tokens(problem.source)), operators=operators))
    return made


def write_fingerprints(path: str | os.PathLike, exam: Sequence[Fingerprint]) -> None:
    """One gzipped line of JSON a problem; the same bytes for the same fingerprints."""
    lines = "".join(json.dumps(f.to_dict(), separators=(",", ":")) + "\n" for f in exam)
    pathlib.Path(path).write_bytes(gzip.compress(lines.encode(), mtime=0))


def read_fingerprints(path: str | os.PathLike) -> list[Fingerprint]:
    """What `write_fingerprints` wrote. Raises ValueError naming the file and the line, OSError where it cannot be read."""
    try:
        lines = gzip.decompress(pathlib.Path(path).read_bytes()).decode().splitlines()
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}:1: got {error}, wanted gzipped lines of fingerprints") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Fingerprint.from_dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}:{number}: got {error}, wanted a fingerprint") from error
    return found


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

    Rules: `untraceable`, `label` (declared operators differ from the traced ones), `random` (an operator draws numbers), `unused` (an
    input or parameter that no output depends on), `duplicate`, `near_duplicate`, `exam_signature`
    (same operators in the same order as a problem), `exam_similar` (syntax trees more alike than `most_similar`; paper: 0.9).
    """
    dropped: list[Dropped] = []
    labelled: list[Task] = []
    for task in tasks:
        try:
            graph = trace(task.source, task.mode)
        except ValueError as error:
            dropped.append(_drop(task, "untraceable", error=str(error)))
            continue
        if graph.operators != task.operators:
            dropped.append(_drop(task, "label", traced=list(graph.operators)))
        elif drawn := random_operators(graph):
            dropped.append(_drop(task, "random", operators=drawn))
        elif idle := unused(graph):
            dropped.append(_drop(task, "unused", names=idle))
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
        tokens = hashed(tree_tokens(task.source))
        scores = ((similarity(tokens, f.tokens, at_least=most_similar), f.origin) for f in exam)
        score, origin = max(scores, default=(0.0, ""))
        if score > most_similar:
            dropped.append(_drop(task, "exam_similar", problem=origin, similarity=round(score, 4), most=most_similar))
        else:
            kept.append(task)
    return kept, dropped


def unused(graph: Graph) -> list[str]:
    """Names of the inputs and parameters that no output depends on; one that is only read for its shape counts as unused."""
    reached, todo = set(), list(graph.outputs)
    while todo:
        at = todo.pop()
        if at not in reached:
            reached.add(at)
            todo += graph.nodes[at].inputs
    return [n.name or n.kind for n in graph.nodes if n.kind in ("input", "parameter") and n.index not in reached]


def random_operators(graph: Graph) -> list[str]:
    """Traced operators that draw random numbers, told by aten's own tag."""
    import torch

    def draws(name: str) -> bool:
        packet = getattr(torch.ops.aten, name, None)
        return packet is not None and any(torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in packet.overloads())

    # An attention that is given no dropout draws nothing, though its operator could.
    return sorted({n.op for n in graph.nodes if n.kind == "op" and draws(n.op) and n.args.get("dropout_p") != 0})


# ---------------------------------------------------------------------------------------- by measuring


def verdict_on(
    task: Task,
    measurement: Measured,
    *,
    min_ms: float,
    max_ms: float,
    memory_bytes: int,
    need_compile: bool,
    attainable_ms: float | None = None,
    min_headroom: float = 1.0,
) -> Dropped | None:
    """The first rule that drops `task`, or None.

    Rules in order: `invalid` (the judge refuses the task), `control` (a kernel that does no work would pass, or the outputs do not
    repeat), `no_compile` (torch.compile fails and is needed), `too_fast`, `too_slow` (eager outside [min_ms, max_ms]), `memory`, `headroom`
    (compile, or eager without it, over the best time known is less than `min_headroom`: nothing to win; only where one is known).
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
    if attainable_ms is not None:
        baseline = measurement.compile_ms or measurement.eager_ms
        if baseline < min_headroom * attainable_ms:
            return _drop(task, "headroom", baseline_ms=baseline, attainable_ms=attainable_ms, min_headroom=min_headroom)
    return None


def accept(
    tasks: Sequence[Task],
    measurements: Sequence[Measured],
    *,
    min_ms: float,
    max_ms: float,
    memory_bytes: int = 4 << 30,
    need_compile: bool = False,
    attainable_ms: Mapping[str, float] | None = None,
    min_headroom: float = 1.0,
) -> tuple[list[Task], list[Dropped]]:
    """Tasks that no rule of `verdict_on` drops, with their baselines and floor, and the others.

    `attainable_ms` gives the best time known by task id, for the tasks where one is.
    """
    if not 0 <= min_ms < max_ms:
        raise ValueError(f"min_ms: got {min_ms} with max_ms = {max_ms}, wanted 0 <= min_ms < max_ms")
    kept, dropped = [], []
    for task, measurement in zip(tasks, measurements, strict=True):
        why = verdict_on(
            task,
            measurement,
            min_ms=min_ms,
            max_ms=max_ms,
            memory_bytes=memory_bytes,
            need_compile=need_compile,
            attainable_ms=(attainable_ms or {}).get(task.id),
            min_headroom=min_headroom,
        )
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


def pair_of(task: Task) -> tuple[str, str | None]:
    """(family of the costliest traced operator, shape regime)."""
    return family_of(task.operators), task.regime


def family_split(
    tasks: Sequence[Task], *, test: int, validation: int, seed: int, held_family: str | None = "softmax"
) -> tuple[list[Task], list[Dropped]]:
    """Tasks with their split set, in the order given, and those that fit no split.

    The test split holds whole (family, regime) pairs: every pair of `held_family`, whose fast idiom train only shows inside other
    families, and others up to `test` tasks, or up to half of `test` where the held family is that large. No pair and no operator signature of it is in train or validation: a task that shares a signature
    but not the pair is dropped by the rule `split`. Validation tasks are drawn from the rest by operator signature.
    Raises ValueError where nothing would be left to train on or nothing can be held out.
    """
    sizes = collections.Counter(map(pair_of, tasks))
    if min(test, validation) < 0 or test + validation >= len(tasks):
        raise ValueError(f"test, validation: got {test} and {validation} of {len(tasks)} tasks, wanted some left to train on")
    held = {pair for pair in sizes if pair[0] == held_family}
    others = sorted((p for p in sizes if p not in held), key=str)
    Random(f"family split {seed}").shuffle(others)
    room = max(test - sum(sizes[p] for p in held), test // 2)
    for pair in others:
        if sizes[pair] <= room:
            held.add(pair)
            room -= sizes[pair]
    if test and not held:
        raise ValueError(f"test: got no (family, regime) pair with at most {test} tasks, wanted more different tasks")
    signatures = {task.operators for task in tasks if pair_of(task) in held}
    rest = [t for t in tasks if pair_of(t) not in held and t.operators not in signatures]
    if len(rest) <= validation:
        raise ValueError(f"tasks: got {len(rest)} left beside the test split of {len(tasks)}, wanted more than {validation}")
    split = {t.id: t.split for t in signature_split(rest, test=0, validation=validation, seed=seed)}
    split |= {t.id: "test" for t in tasks if pair_of(t) in held}
    dropped = [_drop(t, "split", family=pair_of(t)[0], regime=t.regime) for t in tasks if t.id not in split]
    return [dataclasses.replace(t, split=split[t.id]) for t in tasks if t.id in split], dropped
