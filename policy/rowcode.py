"""From a task's operator graph to row code: one short line an operator, in the order of the task's forward.

The idiom is the same everywhere. A kernel walks over rows; inside `EACH { ... }` the value `v` is one element of the row, and every
element-wise operator is one line `v = ...;`. An operator that needs the whole row ends the loop with an accumulator (`c`, zero between
loops, for sums; `d`, lowest between loops, for maxima), leaves row values in `s` and `a`, and opens the next loop. So the code of a chain is the chain of its operators' code, whatever the chain is.

This module knows nothing of C++ or CUDA beyond that: `policy/kernels_cpp.py` and `policy/kernels_cuda.py` wrap the lines.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from data.listing import operator_lines
from data.trace import Graph, Node

BUFFERS = ("t", "u")
SPARE = ("p", "q")
RESERVED = ("o", "m", "n", "i", "j", "v", "s", "a", "c", "d", "real", "run", *BUFFERS, *SPARE)

# One line each: {a} is the operand (or the first), {b} the second; other fields are the operator's own arguments.
UNARY = {
    "relu": "fmaxf({a}, 0)",
    "sigmoid": "1 / (1 + expf(-{a}))",
    "tanh": "tanhf({a})",
    "silu": "{a} / (1 + expf(-{a}))",
    "exp": "expf({a})",
    "expm1": "expm1f({a})",
    "log": "logf({a})",
    "log1p": "log1pf({a})",
    "log2": "log2f({a})",
    "abs": "fabsf({a})",
    "neg": "-{a}",
    "sqrt": "sqrtf({a})",
    "rsqrt": "1 / sqrtf({a})",
    "reciprocal": "1 / {a}",
    "sin": "sinf({a})",
    "cos": "cosf({a})",
    "atan": "atanf({a})",
    "erf": "erff({a})",
    "sign": "({a} > 0) - ({a} < 0)",
    "softsign": "{a} / (1 + fabsf({a}))",
    "hardswish": "{a} * fminf(fmaxf({a} + 3, 0), 6) / 6",
    "hardsigmoid": "fminf(fmaxf({a} + 3, 0), 6) / 6",
    "mish": "{a} * tanhf(log1pf(expf({a})))",
    "log_sigmoid_forward": "fminf({a}, 0) - log1pf(expf(-fabsf({a})))",
    "square": "{a} * {a}",
}
BINARY = {
    "add": "{a} + {b}",
    "sub": "{a} - {b}",
    "mul": "{a} * {b}",
    "div": "{a} / {b}",
    "maximum": "fmaxf({a}, {b})",
    "minimum": "fminf({a}, {b})",
    "atan2": "atan2f({a}, {b})",
    "gt": "{a} > {b}",
    "ge": "{a} >= {b}",
    "lt": "{a} < {b}",
    "le": "{a} <= {b}",
    "eq": "{a} == {b}",
    "ne": "{a} != {b}",
}
ROW_VECTOR = ("softmax", "log_softmax", "layer_norm", "rms_norm", "l2_norm")
ROW_SCALAR = ("sum", "mean", "amax", "amin", "prod", "vector_norm", "var", "std", "logsumexp")
PASS = ("view", "expand", "unsqueeze", "squeeze", "clone", "contiguous", "to_copy", "reshape", "broadcast_to")


class Unsupported(ValueError):
    """The teacher does not write this graph; the message names the operator or shape."""


def number(value: float) -> str:
    """A C literal in the digits of the listing: 2, 0.5f, 1e-05f."""
    value = float(value)
    if not math.isfinite(value):
        raise Unsupported(f"constant: got {value}, wanted a finite number")
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.7g}f"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One operator after fusion of aten spellings: `op` with operand values and arguments."""

    index: int
    op: str
    operands: tuple[int, ...]
    args: dict[str, Any]
    vector: bool
    """True for one value an element, False for one value a row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """A tensor that the kernel reads: its C name, its place in the Python call, and how it is indexed."""

    name: str
    python: str
    access: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """Steps in order, leaves by value, and what the output is."""

    steps: tuple[Step, ...]
    leaves: dict[int, Leaf]
    output: int
    vector: bool
    """Shape kind of the output: one value an element or one a row."""
    keepdim: bool
    main: str
    """Name of the input whose shape is the full shape."""
    says: dict[int, tuple[str, ...]]
    """What the graph's listing says of each step, by index: the lines that it stands for."""
    flat: bool
    """True when no value of a row depends on another: rows are then only blocks."""


def program(graph: Graph) -> Program:
    """Read a graph as row code. Raises Unsupported where it is none."""
    if len(graph.outputs) != 1 or graph.structure != "tensor":
        raise Unsupported(f"outputs: got {len(graph.outputs)} in a {graph.structure}, wanted one tensor")
    full = max((n.shape for n in graph.inputs), key=lambda s: (math.prod(s), len(s)), default=())
    main = next((n for n in graph.inputs if n.shape == full), None)
    if main is None or not full:
        raise Unsupported("inputs: got none with a dimension, wanted at least one")
    alias: dict[int, int] = {}
    nodes = {n.index: n for n in graph.nodes}
    steps: list[Step] = []
    for node in graph.nodes:
        if node.kind != "op":
            continue
        if node.view or node.op in PASS:
            _pass(node, nodes, full)
            alias[node.index] = alias.get(node.inputs[0], node.inputs[0])
            continue
        operands = tuple(alias.get(i, i) for i in node.inputs)
        steps.append(_step(node, operands, nodes, full))
    output = alias.get(graph.outputs[0], graph.outputs[0])
    steps = _fuse(_fuse(steps, output, _l2), output, _rms)
    leaves = _leaves(graph, full)
    out = nodes[graph.outputs[0]]
    if _is_vector(out.shape, full) != next((s.vector for s in steps if s.index == output), True):
        raise Unsupported(f"output: got shape {out.shape}, wanted {full} or one value a row")
    return Program(
        steps=tuple(steps),
        leaves=leaves,
        output=output,
        vector=_is_vector(out.shape, full),
        keepdim=len(out.shape) == len(full),
        main=main.name,
        says=_says(steps, operator_lines(graph)),
        flat=all(s.op not in ROW_VECTOR + ROW_SCALAR for s in steps) and all(leaf.access == "[i + j]" for leaf in leaves.values()),
    )


def _says(steps: list[Step], lines: dict[int, str]) -> dict[int, tuple[str, ...]]:
    """Lines by step: a step takes those of the nodes since the step before it."""
    says, before = {}, -1
    for step in steps:
        says[step.index] = tuple(lines[i] for i in sorted(lines) if before < i <= step.index)
        before = step.index
    return says


def _is_vector(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    if shape == full:
        return True
    if shape in (full[:-1], full[:-1] + (1,)):
        return False
    raise Unsupported(f"shape: got {shape}, wanted {full} or one value a row of it")


def _pass(node: Node, nodes: dict[int, Node], full: tuple[int, ...]) -> None:
    source = nodes[node.inputs[0]]
    if math.prod(source.shape) not in (math.prod(node.shape), math.prod(full[:-1]), 1) or (
        node.shape[-1:] != full[-1:] and node.shape not in (full[:-1], full[:-1] + (1,))
    ):
        raise Unsupported(f"{node.op}: got {source.shape} to {node.shape}, wanted the same rows")


def _step(node: Node, operands: tuple[int, ...], nodes: dict[int, Node], full: tuple[int, ...]) -> Step:
    op, args = node.op, dict(node.args)
    names = dict(zip(node.operands, operands, strict=True))
    if op in ("softmax", "log_softmax", *ROW_SCALAR):
        dims = args.get("dim")
        if (dims if isinstance(dims, list) else [dims]) != [len(full) - 1] or nodes[node.inputs[0]].shape != full:
            raise Unsupported(f"{op}: got dim {dims} of {nodes[node.inputs[0]].shape}, wanted the last of {full}")
    elif op == "layer_norm":
        if list(args["normalized_shape"]) != [full[-1]]:
            raise Unsupported(f"layer_norm: got {args['normalized_shape']}, wanted [{full[-1]}]")
        operands = (names["input"],)
        args |= {"weight": names.get("weight"), "bias": names.get("bias")}
    elif op not in UNARY and op not in BINARY and op not in SPECIAL:
        raise Unsupported(f"operator: got {op}, wanted one that the teacher knows")
    return Step(index=node.index, op=op, operands=operands, args=args, vector=_is_vector(node.shape, full))


def _uses(steps: list[Step], output: int) -> dict[int, int]:
    count = {output: 1}
    for step in steps:
        for value in step.operands:
            count[value] = count.get(value, 0) + 1
    return count


def _fuse(steps: list[Step], output: int, match) -> list[Step]:
    """Replace each run of steps that `match` recognises, and whose inner values nobody else reads, by one step."""
    fused, at = [], 0
    uses = _uses(steps, output)
    while at < len(steps):
        found = match(steps[at:])
        inner = steps[at : at + found[1] - 1] if found else []
        if found and all(uses.get(s.index) == 1 for s in inner):
            fused.append(found[0])
            at += found[1]
        else:
            fused.append(steps[at])
            at += 1
    return fused


def _l2(steps: list[Step]):
    """vector_norm, clamp from below, divide: torch.nn.functional.normalize."""
    if [s.op for s in steps[:3]] != ["vector_norm", "clamp", "div"]:
        return None
    norm, clamp, div = steps[:3]
    if norm.args.get("ord") != 2 or clamp.args.get("max") is not None or clamp.operands != (norm.index,):
        return None
    if div.operands != (norm.operands[0], clamp.index):
        return None
    args = {"eps": clamp.args["min"]}
    return Step(index=div.index, op="l2_norm", operands=norm.operands, args=args, vector=True), 3


def _rms(steps: list[Step]):
    """pow 2, mean, add eps, rsqrt, multiply, and the weight when there is one: rms_norm in aten's spelling."""
    if [s.op for s in steps[:5]] != ["pow", "mean", "add", "rsqrt", "mul"]:
        return None
    square, mean, add, rsqrt, mul = steps[:5]
    chained = mean.operands == (square.index,) and add.operands == (mean.index,) and rsqrt.operands == (add.index,)
    if not chained or square.args.get("exponent") != 2 or set(mul.operands) != {square.operands[0], rsqrt.index}:
        return None
    return Step(index=mul.index, op="rms_norm", operands=square.operands, args={"eps": add.args["other"]}, vector=True), 5


def _leaves(graph: Graph, full: tuple[int, ...]) -> dict[int, Leaf]:
    leaves: dict[int, Leaf] = {}
    taken = set()
    for node in graph.nodes:
        if node.kind not in ("input", "parameter", "buffer"):
            continue
        if node.dtype != "float32":
            raise Unsupported(f"{node.name}: got {node.dtype}, wanted float32")
        if node.kind != "input" and node.shape == full[-1:]:
            access = "[j]"
        elif node.shape == full:
            access = "[i + j]"
        elif node.shape in (full[:-1], full[:-1] + (1,)):
            access = "[i / n]"
        elif math.prod(node.shape) == 1:
            access = "[0]"
        elif math.prod(node.shape) == full[-1] == node.shape[-1]:
            access = "[j]"
        else:
            raise Unsupported(f"{node.name}: got shape {node.shape}, wanted {full}, {full[-1:]} or one value a row")
        name = node.name if node.kind == "input" else "b" if node.name.rpartition(".")[2] in ("bias", "shift", "beta", "offset") else "w"
        number_of = 2
        stem = name
        while name in taken or (node.kind == "input" and name in RESERVED):
            name, number_of = f"{stem}{number_of}", number_of + 1
        taken.add(name)
        leaves[node.index] = Leaf(name=name, python=node.name if node.kind == "input" else f"self.{node.name}", access=access)
    return leaves


def _clamp(step: Step) -> str:
    low, high = step.args.get("min"), step.args.get("max")
    text = "{a}" if low is None else f"fmaxf({{a}}, {number(low)})"
    return text if high is None else f"fminf({text}, {number(high)})"


def _pow(step: Step) -> str:
    known = {2.0: "{a} * {a}", 3.0: "{a} * {a} * {a}", 0.5: "sqrtf({a})", -0.5: "1 / sqrtf({a})", -1.0: "1 / {a}"}
    exponent = float(step.args["exponent"])
    return known.get(exponent) or f"powf({{a}}, {number(exponent)})"


def _gelu(step: Step) -> str:
    if step.args.get("approximate") == "tanh":
        return "0.5f * {a} * (1 + tanhf(0.79788456f * ({a} + 0.044715f * {a} * {a} * {a})))"
    return "0.5f * {a} * (1 + erff({a} * 0.70710678f))"


def _elu(step: Step) -> str:
    alpha, scale, inner = (float(step.args.get(k, 1.0)) for k in ("alpha", "scale", "input_scale"))
    factor = "" if alpha * scale == 1 else f"{number(alpha * scale)} * "
    positive = "{a}" if scale == 1 else f"{number(scale)} * {{a}}"
    inside = "{a}" if inner == 1 else f"{number(inner)} * {{a}}"
    return f"{{a}} > 0 ? {positive} : {factor}(expf({inside}) - 1)"


def _celu(step: Step) -> str:
    alpha = float(step.args.get("alpha", 1.0))
    return _elu(dataclasses.replace(step, args={"alpha": alpha, "input_scale": 1 / alpha}))


def _softplus(step: Step) -> str:
    beta = float(step.args.get("beta", 1))
    if beta == 1:
        return "fmaxf({a}, 0) + log1pf(expf(-fabsf({a})))"
    return f"fmaxf({{a}}, 0) + log1pf(expf(-{number(beta)} * fabsf({{a}}))) / {number(beta)}"


SPECIAL = {
    "clamp": _clamp,
    "pow": _pow,
    "gelu": _gelu,
    "elu": _elu,
    "celu": _celu,
    "softplus": _softplus,
    "leaky_relu": lambda s: f"{{a}} > 0 ? {{a}} : {number(s.args.get('negative_slope', 0.01))} * {{a}}",
    "rsub": lambda s: f"{number(s.args['other'])} - {{a}}",
    "hardshrink": lambda s: f"fabsf({{a}}) > {number(s.args.get('lambd', 0.5))} ? {{a}} : 0",
    "softshrink": lambda s: f"{{a}} - fminf(fmaxf({{a}}, {number(-s.args.get('lambd', 0.5))}), {number(s.args.get('lambd', 0.5))})",
    "threshold": lambda s: f"{{a}} > {number(s.args['threshold'])} ? {{a}} : {number(s.args['value'])}",
    "where": lambda s: "{a} != 0 ? {b} : {c}",
    "addcmul": lambda s: "{a} + {b} * {c}" if s.args.get("value", 1) == 1 else f"{{a}} + {number(s.args['value'])} * {{b}} * {{c}}",
    "lerp": lambda s: f"{{a}} + {number(s.args['weight'])} * ({{b}} - {{a}})",
}


def expression(step: Step) -> str:
    """The right side of an element-wise operator's line, with {a}, {b}, {c} for its operands."""
    if step.op in UNARY:
        return UNARY[step.op]
    if step.op in SPECIAL:
        return SPECIAL[step.op](step)
    text = BINARY[step.op]
    alpha = step.args.get("alpha", 1)
    if len(step.operands) == 1:
        other = step.args["other"]
        return text.replace("{b}", number(other * alpha))
    return text if alpha == 1 else text.replace("{b}", f"{number(alpha)} * {{b}}")
