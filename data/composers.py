"""Who composes: a grammar over the hand-written catalogue and the seeds, or a language model behind an OpenAI-compatible endpoint.

Both answer `compose(rng, length, regime, elements)` with a source, or None where nothing came of it; `data.synthesis` traces, labels and
compares what they give, whoever wrote it.
"""

from __future__ import annotations

import ast
import dataclasses
import logging
import math
import re
from random import Random
from typing import Any, Protocol

from data.chat import Client, content
from data.operators import CATALOGUE, FAMILIES, Operator, Spelling
from data.regimes import LAYOUTS
from data.trace import Graph, trace
from data.values import Shape, Values
from data.writing import Step, write_source

log = logging.getLogger(__name__)

CONVOLUTIONS = ("torch.convolution", "torch.transposed_convolution")
TRIED = 10
"""Operators tried for one place of a composition."""
GROWTH = 8
"""No tensor of a task holds more than this many times the most elements of an input."""


class Composer(Protocol):
    """Composes sources; what it gives is checked by the caller."""

    def compose(self, rng: Random, length: int, regime: str, elements: tuple[int, int], *, convolution: bool = True) -> str | None:
        """A source of `length` operators whose main input holds between `elements` numbers; without a convolution where not allowed."""


# --------------------------------------------------------------------------------------------- grammar


class Grammar:
    """Chains of catalogue operators and seeds whose shapes fit. Raises ValueError for unknown families.

    `families` are the catalogue's (activation, ...), the seeds' (torch.norm, ...), or torch for all of those.
    """

    def __init__(self, families: list[str], *, surface: str = "varied"):
        from data.seeds import torch_seeds

        self.surface = surface
        self.operators = [o for o in CATALOGUE.values() if o.family in families]
        self.seeds = [s for s in torch_seeds().values() if s.family in families or "torch" in families]
        self.families: dict[str, list[Any]] = {}
        for one in (*self.operators, *self.seeds):
            self.families.setdefault(one.family, []).append(one)
        if not self.families:
            raise ValueError(f"families: got {families}, none of whose operators yields a valid task")

    def compose(self, rng: Random, length: int, regime: str, elements: tuple[int, int], *, convolution: bool = True) -> str | None:
        steps = self.chain(rng, length, regime, elements, convolution)
        return steps and write_source(rng, steps, _declared_shape(steps), surface=self.surface)

    def chain(self, rng: Random, length: int, regime: str, elements: tuple[int, int], convolution: bool) -> tuple[Step, ...] | None:
        """The steps of one composition, the first being the view of a strided input; None where stuck."""
        families = [f for f in self.families if convolution or f not in CONVOLUTIONS]
        convolving = [f for f in families if f in CONVOLUTIONS]
        # One family of many would be met too seldom among the few tasks that may hold one.
        family = rng.choice(convolving) if convolving and rng.random() < 0.5 else rng.choice(families)
        first = rng.choice(self.families[family])
        size = int(math.exp(rng.uniform(math.log(elements[0]), math.log(elements[1]))))
        layout = "rows" if isinstance(first, Operator) else first.layout
        shape = LAYOUTS[layout][regime](rng, size)
        # What a product or an attention costs is not told by its input alone, and their regimes bound it.
        least = elements[0] // (64 if layout in ("matrix", "rows3", "sequence", "tokens") else 2)
        if not least <= math.prod(shape) <= elements[1]:
            return None
        steps: list[Step] = []
        if regime == "strided" and len(shape) > 1:
            steps.append(_transposed(shape))
        values = Values() if isinstance(first, Operator) else Values(lo=first.domain[1], hi=first.domain[2])
        convolved = not convolution
        for place in range(length):
            last = place + 1 == length
            offered = [first] if place == 0 else [rng.choice(self.families[rng.choice(families)]) for _ in range(TRIED)]
            for one in offered:
                if one.family in CONVOLUTIONS and convolved:
                    continue
                if steps and steps[-1].operator.name == one.name:  # nobody writes relu(relu(x))
                    continue
                made = (
                    self._catalogued(rng, one, shape, values)
                    if isinstance(one, Operator)
                    else self._seeded(rng, one, shape, values, regime, place)
                )
                if made is None:
                    continue
                step, after, result, largest = made
                if largest > GROWTH * elements[1] or (not last and (len(result) < 2 or math.prod(result) < 64)):
                    continue
                if place == 0 and steps:
                    steps[0] = dataclasses.replace(steps[0], draw=step.draw)
                steps.append(step)
                shape, values = result, after
                convolved |= one.family in CONVOLUTIONS
                break
            else:
                return None
        return tuple(steps)

    def _catalogued(self, rng: Random, one: Operator, shape: Shape, values: Values):
        if (one.least_row > 1 and (not shape or shape[-1] < one.least_row)) or (one.saturates and shape[-1:] == (1,)):
            return None
        arguments = one.arguments(rng, shape)
        after = one.values(values, arguments, shape)
        if after is None or after.hi - after.lo < 0.01 * after.size:
            return None
        kind = rng.choice(one.operand) if one.operand else None
        step = Step(operator=one, spelling=rng.choice(one.spellings), args=arguments, operand=kind, shape=shape)
        result = one.shape(shape, arguments)
        return step, after, result, math.prod(shape)

    def _seeded(self, rng: Random, one: Any, shape: Shape, values: Values, regime: str, place: int):
        after = one.values(values)
        if after is None or (place and one.name == "embedding"):
            return None
        try:
            step = one.step(rng, shape, regime)
            graph = trace(write_source(Random(0), (step,), shape, surface="plain"))
        except ValueError:  # does not fit this shape
            return None
        output = graph.nodes[graph.outputs[0]]
        if not output.dtype.startswith("float") or len(graph.outputs) > 1:
            return None
        step = dataclasses.replace(step, operator=dataclasses.replace(step.operator, traced=graph.operators))
        return step, after, output.shape, max(math.prod(n.shape) for n in graph.nodes)


def _transposed(shape: Shape) -> Step:
    """The view that makes an input of `shape` out of one whose last two dimensions are swapped."""
    operator = Operator(name="transpose", family="layout", traced=(), spellings=(), values=lambda v, a, s: v)
    spelling = Spelling(call="{x}.transpose(-1, -2)", style="method")
    return Step(operator=operator, spelling=spelling, args={}, operand=None, shape=(*shape[:-2], shape[-1], shape[-2]))


def _declared_shape(steps: tuple[Step, ...]) -> Shape:
    return steps[0].shape


# -------------------------------------------------------------------------------------- language model

PROMPT = """Write one PyTorch task as a Python file. It holds `import torch`, `import torch.nn as nn`, a class `Model(nn.Module)` whose
forward applies {count} operators in sequence to an input of shape {shape}: {operators}. It also holds `get_inputs()`, which returns a
list of tensors drawn by torch.randn or torch.rand, and `get_init_inputs()`, which returns the list of the constructor's arguments.
Vary names, and whether operators are written as functions, modules or methods. Nothing random in forward, no other imports, no I/O.
Answer with the file in one ```python block."""
IMPORTS = ("torch", "torch.nn", "torch.nn.functional", "math", "typing", "__future__")
FORBIDDEN = {"eval", "exec", "open", "compile", "getattr", "setattr", "delattr", "globals", "locals", "vars", "input", "breakpoint"}
FORBIDDEN |= {"load", "save", "os", "sys", "hub", "jit", "ops", "classes", "utils", "multiprocessing", "distributed", "serialization", "_C"}


class LanguageModel:
    """Asks a chat model for each composition. The key comes from the environment only.

    `address` is the endpoint up to /v1; `key_from` names the environment variable with its key, empty for none. Raises ValueError where
    that variable is not set, OSError where the endpoint refuses, or gives no usable answer `data.chat.TRIES` times with growing waits.
    """

    def __init__(
        self,
        address: str,
        model: str,
        families: list[str],
        *,
        key_from: str = "OPENAI_API_KEY",
        timeout_s: float = 120.0,
        retry_s: float = 2.0,
    ):
        self.client, self.model = Client(address, key_from=key_from, timeout_s=timeout_s, retry_s=retry_s), model
        self.grammar = Grammar(families)

    def compose(self, rng: Random, length: int, regime: str, elements: tuple[int, int], *, convolution: bool = True) -> str | None:
        steps = self.grammar.chain(rng, length, regime, elements, convolution)
        if steps is None:
            return None
        shape = _declared_shape(steps)
        names = [s.operator.name for s in steps if s.operator.traced]
        text = self.ask(PROMPT.format(count=length, shape=shape, operators=", ".join(names)), seed=rng.randrange(1 << 31))
        found = re.search(r"```(?:python)?\n(.*?)```", text, re.S)
        try:
            source = harmless((found[1] if found else text).strip() + "\n")
            graph = trace(source)
        except ValueError as error:
            log.info("composer %s: refused: %s", self.model, error)
            return None
        wanted = tuple(op for s in steps for op in s.operator.traced)
        given = [n.shape for n in graph.inputs]
        if not given or given[0] != shape or not _within(wanted, graph):
            log.info("composer %s: refused: got %s on %s, wanted %s on %s", self.model, graph.operators, given[:1], wanted, shape)
            return None
        return source

    def ask(self, prompt: str, seed: int) -> str:
        """The model's answer. Raises OSError with the endpoint's own words where it refuses."""
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "temperature": 1.0, "seed": seed}
        return self.client.ask("/chat/completions", body, content)


def _within(wanted: tuple[str, ...], graph: Graph) -> bool:
    """True where the operators asked for occur in this order, whatever stands between them."""
    rest = iter(graph.operators)
    return all(any(op == found for found in rest) for op in wanted)


def harmless(source: str) -> str:
    """`source` where it only imports torch and mathematics and names nothing that reaches outside; tracing executes it.

    It is a net for what a model writes by mistake, no sandbox. Raises ValueError with the line of the first thing refused.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"source: got {error}, wanted Python") from error
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name not in IMPORTS]
        elif isinstance(node, ast.ImportFrom):
            names = (
                [node.module or "."] if node.level or node.module not in IMPORTS else [a.name for a in node.names if a.name in FORBIDDEN]
            )
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            outside = name in FORBIDDEN or (name.startswith("__") and name not in ("__init__", "__name__"))
            names = [name] if outside else []
        if names:
            raise ValueError(f"line {node.lineno}: got {names[0]}, wanted only torch, math and typing")
    return source


def known_families() -> list[str]:
    """Every family that may be asked for: the catalogue's, the seeds', and torch and transformers for all of theirs."""
    from data.modules import KINDS
    from data.seeds import torch_seeds

    modules = sorted(f"transformers.{family}" for _, family in KINDS if family)
    return [*FAMILIES, "torch", *sorted({s.family for s in torch_seeds().values()}), "transformers", *modules]
