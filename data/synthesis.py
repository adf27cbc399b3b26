"""New tasks: compositions of one to five operators of the catalogue, written as a person would write them (CUDA Agent, arXiv 2602.24286)."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from random import Random

from data.composers import Composer, Grammar, known_families
from data.operators import CATALOGUE, FAMILIES, Operator
from data.records import Task
from data.regimes import REGIME_NAMES, REGIMES
from data.similarity import normalise
from data.trace import Graph, fingerprint, trace
from data.values import Shape, Values
from data.writing import Step, write_source

log = logging.getLogger(__name__)

PUBLISHED_MIX = {1: 0.034, 2: 0.838, 3: 0.076, 4: 0.028, 5: 0.012}
"""Share of tasks by number of composed operators, as published (CUDA Agent, arXiv 2602.24286; its modules from transformers left out)."""
TRANSFORMERS_SHARE = 0.012
"""Share of modules of transformers among them, as published; where such families are asked for."""
MOST_OPERATORS = 5
ATTEMPTS = 60
"""Compositions tried for one task before synthesis says that nothing new can be made."""
SEEDED_ATTEMPTS = 400
"""The same with seeds, many of which do not fit the shape that an earlier one leaves."""


# ---------------------------------------------------------------------------------------- composition


def compose(rng: Random, operators: list[Operator], length: int, shape: Shape) -> tuple[Step, ...] | None:
    """`length` operators in sequence whose shapes fit and whose values stay finite, varied and dependent on the input; None if stuck."""
    steps: list[Step] = []
    at, values = shape, Values()
    for _ in range(length):
        for operator in rng.sample(operators, min(len(operators), 12)):
            if steps and steps[-1].operator is operator:  # nobody writes relu(relu(x)), and neg(neg(x)) is nothing
                continue
            if operator.least_row > 1 and (not at or at[-1] < operator.least_row):
                continue
            if operator.rowwise and at != shape:  # a row is the input's row, not the batch that a reduction left
                continue
            if operator.saturates and (len(at) < len(shape) or at[-1:] == (1,)):
                continue
            arguments = operator.arguments(rng, at)
            after = operator.values(values, arguments, at)
            if after is None or after.hi - after.lo < 0.01 * after.size:
                continue
            kind = None
            if operator.operand:  # a parameter over the last dimension belongs to the input's rows, not to what a reduction left
                kind = rng.choice(operator.operand) if at == shape else "input"
            steps.append(Step(operator=operator, spelling=rng.choice(operator.spellings), args=arguments, operand=kind, shape=at))
            at, values = operator.shape(at, arguments), after
            break
        else:
            return None
    return tuple(steps)


def synthesize(
    *,
    count: int,
    seed: int,
    mix: dict[int, float],
    families: list[str],
    regimes: list[str],
    max_elements: int,
    min_elements: int | None = None,
    surface: str = "varied",
    avoid: Collection[tuple[str, ...]] = (),
    composer: Composer | None = None,
    convolutions: float = 0.1,
    transformers: float = TRANSFORMERS_SHARE,
    bf16: float = 0.0,
) -> list[Task]:
    """`count` new tasks, the same for the same arguments; their operators are traced, not declared.

    `mix` gives the share of each number of composed operators (1 to 5), `max_elements` the most elements of one input and `min_elements`
    the least (default: half of it). `surface` is "varied" or "plain" (one assignment a step, no docstrings). `avoid` holds operator
    signatures that no task may have, such as those of a test split. No two tasks have the same graph.

    Families beside the catalogue's are those of the seeds: torch.norm, torch.convolution, ..., torch for all of them, transformers for
    modules of that library, which are `transformers` of the tasks. At most `convolutions` of the tasks hold one, `bf16` of them are of
    that precision. `composer` composes instead of the grammar.

    An operator that yields nothing valid is logged by name and left out. It does not run anything on real data: whether a task takes a
    sensible time is for `data.selection`.

    Raises ValueError for unknown families or regimes, a bad mix, or when fewer than `count` different tasks can be made.
    """
    mix = _checked_mix(mix)
    seeded = composer is not None or not set(families) <= set(FAMILIES)
    _known("families", families, known_families() if seeded else FAMILIES)
    _known("regimes", regimes, REGIME_NAMES if seeded else REGIMES)
    for name, share in (("convolutions", convolutions), ("transformers", transformers), ("bf16", bf16)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name}: got {share}, wanted a share from 0 to 1")
    if surface not in ("varied", "plain"):
        raise ValueError(f"surface: got {surface!r}, wanted varied or plain")
    least = max_elements // 2 if min_elements is None else min_elements
    if not 64 <= least <= max_elements:
        raise ValueError(f"min_elements: got {least}, wanted 64 to max_elements = {max_elements}")
    if seeded:
        shares = {"convolutions": convolutions, "transformers": transformers, "bf16": bf16}
        return _composed(count, seed, mix, families, regimes, (least, max_elements), surface, avoid, composer, shares)
    operators = valid_operators([o for o in CATALOGUE.values() if o.family in families])
    if not operators:
        raise ValueError(f"families: got {families}, none of whose operators yields a valid task")
    rng = Random(f"synthesis {seed}")
    lengths = _lengths(rng, count, mix)
    order = [regimes[i % len(regimes)] for i in range(count)]
    rng.shuffle(order)
    seen: set = set()
    tasks = []
    for length, regime in zip(lengths, order, strict=True):
        tasks.append(_one(rng, operators, length, regime, (least, max_elements), surface, seen, frozenset(map(tuple, avoid))))
    return tasks


def _one(rng, operators, length, regime, elements, surface, seen, avoid) -> Task:
    for _ in range(ATTEMPTS):
        size = int(math.exp(rng.uniform(math.log(elements[0]), math.log(elements[1]))))
        shape = REGIMES[regime](rng, size)
        steps = compose(rng, operators, length, shape)
        if steps is None or math.prod(shape) > elements[1]:
            continue
        source = write_source(rng, steps, shape, surface=surface)
        graph = trace(source)
        _agree(graph, steps, source)
        keys = (fingerprint(graph), normalise(source))
        if seen.isdisjoint(keys) and graph.operators not in avoid:
            seen.update(keys)
            return Task(source=source, origin="synthetic", operators=graph.operators, regime=regime)
    raise ValueError(
        f"count: got no new task of {length} operators in regime {regime} after {ATTEMPTS} attempts, wanted fewer tasks or more families"
    )


def _composed(count, seed, mix, families, regimes, elements, surface, avoid, composer, shares) -> list[Task]:
    """As `synthesize`, with seeds or with a composer that is handed in."""
    rng = Random(f"composition {seed}")
    modules = [f for f in families if f.partition(".")[0] == "transformers"]
    composed = [f for f in families if f not in modules]
    library = round(count * shares["transformers"]) if composed and modules else count if modules else 0
    lengths = _lengths(rng, count - library, mix) + [0] * library
    order = [regimes[i % len(regimes)] for i in range(count)]
    rng.shuffle(order)
    convolved = set(rng.sample(range(count), int(shares["convolutions"] * count)))
    halves = set(rng.sample(range(count), round(shares["bf16"] * count)))
    if composer is None and composed:
        composer = Grammar(composed, surface=surface)
    banned, seen, tasks = frozenset(map(tuple, avoid)), set(), []
    for at, (length, regime) in enumerate(zip(lengths, order, strict=True)):
        for _ in range(SEEDED_ATTEMPTS):
            try:
                if length:
                    source = composer.compose(rng, length, regime, elements, convolution=at in convolved)
                else:
                    source = _library(rng, modules, regime, elements)
                if source is None:
                    continue
                if at in halves:
                    source = source.replace("\n\n\nclass Model", '\n\nPRECISION = "bf16"\n\n\nclass Model', 1)
                graph = trace(source)
            except ValueError as error:  # a composition that does not hold together is drawn again
                log.debug("composition: %s", error)
                continue
            keys = (fingerprint(graph), normalise(source))
            if graph.operators and seen.isdisjoint(keys) and graph.operators not in banned:
                seen.update(keys)
                precision = "bf16" if at in halves else "fp32"
                tasks.append(Task(source=source, origin="synthetic", operators=graph.operators, regime=regime, precision=precision))
                break
        else:
            raise ValueError(
                f"count: got no new task of {length} operators in regime {regime} after {SEEDED_ATTEMPTS} attempts, "
                "wanted fewer tasks or more families"
            )
    return tasks


def _library(rng: Random, families: list[str], regime: str, elements: tuple[int, int]) -> str | None:
    """A module of transformers in a regime, or None where the drawn shape is out of bounds."""
    from data.modules import transformer_seeds

    seeds = [s for s in transformer_seeds().values() if "transformers" in families or s.family in families]
    one = rng.choice(seeds)
    shape = one.shape(rng, regime, int(math.exp(rng.uniform(math.log(elements[0]), math.log(elements[1])))))
    return one.source(shape, sdpa=one.sdpa and rng.random() < 0.5) if math.prod(shape) <= elements[1] else None


def valid_operators(operators: list[Operator], *, surface: str = "varied") -> list[Operator]:
    """Those of `operators` whose every spelling traces to what the record says; the others are logged by name with the error."""
    valid = []
    for operator in operators:
        try:
            for spelling in operator.spellings:
                for kind in operator.operand or (None,):
                    rng = Random(operator.name)
                    args = operator.arguments(rng, (16, 32))
                    step = Step(operator=operator, spelling=spelling, args=args, operand=kind, shape=(16, 32))
                    source = write_source(rng, (step,), (16, 32), surface=surface)
                    _agree(trace(source), (step,), source)
        except Exception as error:  # a record may hold any mistake: it is named and the rest goes on
            log.warning("operator %s: left out: %s", operator.name, error)
        else:
            valid.append(operator)
    return valid


def _agree(graph: Graph, steps: tuple[Step, ...], source: str) -> None:
    declared = tuple(name for step in steps for name in step.operator.traced)
    if graph.operators != declared:
        raise ValueError(f"operator {[s.operator.name for s in steps]}: got the trace {graph.operators}, wanted {declared}, in\n{source}")


def _checked_mix(mix: dict[int, float]) -> dict[int, float]:
    try:
        mix = {int(length): float(share) for length, share in mix.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"mix: got {mix!r}, wanted a share for each number of operators, such as {{1: 0.2, 2: 0.8}}") from error
    total = sum(mix.values())
    if not mix or min(mix.values()) < 0 or total <= 0 or not set(mix) <= set(range(1, MOST_OPERATORS + 1)):
        raise ValueError(f"mix: got {mix}, wanted positive shares for 1 to {MOST_OPERATORS} operators")
    return {length: share / total for length, share in sorted(mix.items())}


def _known(field: str, got: list[str], known) -> None:
    unknown = [name for name in got if name not in known]
    if unknown or not got:
        raise ValueError(f"{field}: got {unknown or got}, wanted some of {', '.join(known)}")


def _lengths(rng: Random, count: int, mix: dict[int, float]) -> list[int]:
    """The mix met exactly up to rounding (largest remainders), in random order."""
    exact = {length: share * count for length, share in mix.items()}
    floors = {length: int(value) for length, value in exact.items()}
    by_remainder = sorted(exact, key=lambda length: (floors[length] - exact[length], length))
    for length in by_remainder[: count - sum(floors.values())]:
        floors[length] += 1
    lengths = [length for length, times in floors.items() for _ in range(times)]
    rng.shuffle(lengths)
    return lengths
