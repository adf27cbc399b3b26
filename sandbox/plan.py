"""The `plan` format: device code (`kernels.cu`) and a declared launch plan (`plan.json`). No candidate host code exists.

    {"let":     {"n": "x0.numel", "cols": "x0.shape[-1]"},                 integers, resolved on demand
     "buffers": {"t0": {"dtype": "float32", "shape": ["n // cols", "cols"]}, "t1": {"like": "x0"}, "t2": {"view": "t0", "shape": ["n"]}},
     "outputs": {"y0": {"like": "x0"}},                                     or dtype and shape, as for buffers
     "steps": [{"kernel": "fused", "grid": ["ceil_div(n, 256)"], "block": [256], "shared": 0, "args": ["x0", "y0", "n", 0.5]},
               {"gemm": {"a": "x0", "b": "p.linear.weight", "out": "t0", "trans_a": false, "trans_b": true, "alpha": 1.0, "beta": 0.0}},
               {"conv": {"x": "x0", "w": "p.conv.weight", "bias": null, "out": "t0", "stride": [1], "padding": [0], "dilation": [1],
                         "groups": 1}},
               {"copy": {"from": "x0", "to": "t0"}}, {"fill": {"to": "t0", "value": 0.0}}]}

Tensors: `x0`, `x1`, ... the arguments of forward by position (numbers among them are scalars), `y0`, ... the outputs, `p.NAME` the
parameters and buffers of Model by state_dict name, and the declared buffers. All are contiguous.
Integer expressions: JSON integers, or strings over `+ - * // %`, parentheses, `min max ceil_div next_pow2`, names of `let`, and
`T.shape[k]`, `T.numel`, `T.ndim` of any tensor. Arguments follow the kernel's signature in kernels.cu.
`parse` is static; `bind` puts shapes in and yields numbers only. Both raise PlanError with what was got and what was wanted.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

from sandbox.device_code import Parameter, PlanError, check_directives, signatures, strip, want
from sandbox.expression import ExpressionError, Node, names, parse_expression, value_of
from sandbox.structure import MOST

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
"""Name to bytes per element."""
LIBRARY_STEPS = ("gemm", "conv")
MOVE_STEPS = ("copy", "fill")
MAX_SOURCE = 128 * 1024
MAX_PLAN = 64 * 1024
MAX_STEPS = MAX_BUFFERS = MAX_LET = 64
MAX_SHARED = 227 * 1024
MAX_BUFFER_BYTES = 32 << 30
GRID_LIMIT = (2**31 - 1, 65535, 65535)
BLOCK_LIMIT = (1024, 1024, 64)
_TENSOR = re.compile(r"[xy]\d{1,2}|p(\.\w+)+|[A-Za-z_]\w{0,63}")
_OWN_NAME = re.compile(r"(?![xy]\d+$)(?!p$)[A-Za-z_]\w{0,63}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """How a buffer or an output is declared: `like` another tensor, a `view` of one, or dtype and dims."""

    dtype: str | None = None
    dims: tuple[Node, ...] | None = None
    like: str | None = None
    view: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """`kind` kernel, gemm, conv, copy or fill; `options` are the validated fields of its JSON."""

    kind: str
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A statically valid plan. `kernels` maps the entries of kernels.cu to their parameters."""

    source: str
    kernels: dict[str, tuple[Parameter, ...]]
    let: dict[str, Node]
    buffers: dict[str, Shape]
    outputs: dict[str, Shape]
    steps: tuple[Step, ...]

    @property
    def launched(self) -> tuple[str, ...]:
        """Names of the own kernels, in order of first launch."""
        return tuple(dict.fromkeys(s.options["kernel"] for s in self.steps if s.kind == "kernel"))

    @property
    def library_steps(self) -> tuple[str, ...]:
        return tuple(s.kind for s in self.steps if s.kind in LIBRARY_STEPS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """Shape and dtype (a key of DTYPES) of a bound tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * DTYPES[self.dtype]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """One step with numbers in place. For a kernel, args are ("pointer", name), ("int", bytes, value) or ("float", bytes, value)."""

    kind: str
    options: dict[str, Any]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    args: tuple[tuple, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """A plan for given input shapes: tensors to allocate (in order), views, and the launches."""

    buffers: dict[str, Tensor]
    views: dict[str, tuple[str, Tensor]]
    outputs: dict[str, Tensor]
    launches: tuple[Launch, ...]


def parse(files: dict[str, str]) -> Plan:
    """Static validation of `kernels.cu` and `plan.json`; needs no shapes, no GPU and no compiler.

    Example: parse({"kernels.cu": 'extern "C" __global__ void f(float* y) {}', "plan.json": "{...}"})
    """
    want(set(files) == {"kernels.cu", "plan.json"}, "files", sorted(files), "kernels.cu and plan.json, nothing else")
    source, text = files["kernels.cu"], files["plan.json"]
    want(len(source) <= MAX_SOURCE, "kernels.cu", f"{len(source)} characters", f"at most {MAX_SOURCE}")
    want(len(text) <= MAX_PLAN, "plan.json", f"{len(text)} characters", f"at most {MAX_PLAN}")
    plain = strip(source)
    check_directives(plain)
    kernels = signatures(plain)
    try:
        tree = json.loads(text, object_pairs_hook=_no_duplicates)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanError(f"plan.json: got invalid JSON ({error}), wanted an object") from None
    want(isinstance(tree, dict), "plan.json", tree, "an object")
    want(not set(tree) - {"let", "buffers", "outputs", "steps"}, "plan.json", sorted(tree), "only let, buffers, outputs, steps")
    let = {n: _expression(v, f"let.{n}") for n, v in _section(tree, "let", MAX_LET, required=False).items()}
    buffers = {n: _shape(v, f"buffers.{n}", views=True) for n, v in _section(tree, "buffers", MAX_BUFFERS, required=False).items()}
    outputs = {n: _shape(v, f"outputs.{n}", views=False) for n, v in _section(tree, "outputs", MOST, required=True).items()}
    for name in [*let, *buffers]:
        want(_OWN_NAME.fullmatch(name) is not None, "name", name, "letters, digits and underscore, not x0.., y0.. or p")
    want(not set(let) & set(buffers), "names", sorted(set(let) & set(buffers)), "different names in let and buffers")
    want(list(outputs) == [f"y{i}" for i in range(len(outputs))], "outputs", list(outputs), "y0, y1, ... in order")
    raw = tree.get("steps")
    want(isinstance(raw, list) and 0 < len(raw) <= MAX_STEPS, "steps", raw, f"a list of 1 to {MAX_STEPS} steps")
    known = _Names(let=set(let), buffers=set(buffers), outputs=set(outputs))
    for where, shape in [(f"buffers.{n}", s) for n, s in buffers.items()] + [(f"outputs.{n}", s) for n, s in outputs.items()]:
        for tensor in filter(None, (shape.like, shape.view)):
            known.tensor(tensor, where)
        for node in shape.dims or ():
            known.check(node, where)
    for name, node in let.items():
        known.check(node, f"let.{name}")
    steps = tuple(_step(s, f"steps[{i}]", kernels, known) for i, s in enumerate(raw))
    want(any(s.kind == "kernel" for s in steps), "steps", [s.kind for s in steps], "at least one kernel step")
    return Plan(source=source, kernels=kernels, let=let, buffers=buffers, outputs=outputs, steps=steps)


def _no_duplicates(pairs):
    want(len(dict(pairs)) == len(pairs), "plan.json", [k for k, _ in pairs], "each key once")
    return dict(pairs)


def _section(tree: dict, key: str, most: int, *, required: bool) -> dict:
    section = tree.get(key, {})
    want(isinstance(section, dict) and len(section) <= most, key, section, f"an object of at most {most} names")
    want(bool(section) or not required, key, section, "at least one")
    return section


def _expression(value: Any, where: str) -> Node:
    try:
        return parse_expression(value)
    except ExpressionError as error:
        raise PlanError(f"{where}: {error}") from None


def _shape(value: Any, where: str, *, views: bool) -> Shape:
    want(isinstance(value, dict), where, value, "an object with like, or dtype and shape")
    keys = set(value)
    dims = None
    if "shape" in value:
        want(
            isinstance(value["shape"], list) and len(value["shape"]) <= 8,
            f"{where}.shape",
            value["shape"],
            "a list of at most 8 expressions",
        )
        dims = tuple(_expression(v, f"{where}.shape") for v in value["shape"])
    if keys == {"like"}:
        want(isinstance(value["like"], str), where, value, "the name of a tensor")
        return Shape(like=value["like"])
    if keys == {"dtype", "shape"}:
        want(value["dtype"] in DTYPES, f"{where}.dtype", value["dtype"], ", ".join(DTYPES))
        return Shape(dtype=value["dtype"], dims=dims)
    if views and keys == {"view", "shape"}:
        want(isinstance(value["view"], str), where, value, "the name of a tensor")
        return Shape(view=value["view"], dims=dims)
    raise PlanError(f"{where}: got keys {sorted(keys)}, wanted like, or dtype and shape{', or view and shape' if views else ''}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Names:
    """What a static reference may name. Inputs and parameters are known only when bound."""

    let: set[str]
    buffers: set[str]
    outputs: set[str]

    def is_tensor(self, name: str) -> bool:
        return name in self.buffers or name in self.outputs or re.fullmatch(r"x\d{1,2}|p(\.\w+)+", name) is not None

    def tensor(self, name: Any, where: str) -> str:
        want(
            isinstance(name, str) and _TENSOR.fullmatch(name) is not None and self.is_tensor(name),
            where,
            name,
            f"a tensor: x0.., p.NAME, {', '.join(sorted(self.outputs | self.buffers))}",
        )
        return name

    def written(self, name: Any, where: str) -> str:
        want(isinstance(name, str) and name in self.outputs | self.buffers, where, name, "a buffer or an output to write")
        return name

    def check(self, node: Node, where: str) -> Node:
        for name in names(node):
            tensor = re.fullmatch(r"(.+)\.(shape|numel|ndim)", name)
            if tensor is not None:
                self.tensor(tensor[1], where)
            else:
                want(
                    name in self.let or re.fullmatch(r"x\d{1,2}", name) is not None,
                    where,
                    name,
                    "a name of let, or T.shape[k], T.numel, T.ndim",
                )
        return node


def _step(value: Any, where: str, kernels: dict, known: _Names) -> Step:
    want(isinstance(value, dict), where, value, "an object")
    if "kernel" in value:
        return Step(kind="kernel", options=_kernel_step(value, where, kernels, known))
    want(len(value) == 1 and next(iter(value)) in LIBRARY_STEPS + MOVE_STEPS, where, sorted(value), "kernel, gemm, conv, copy or fill")
    kind, o = next(iter(value.items()))
    where = f"{where}.{kind}"
    want(isinstance(o, dict), where, o, "an object")
    fields = {
        "gemm": ({"a", "b", "out"}, {"trans_a": False, "trans_b": False, "alpha": 1.0, "beta": 0.0}),
        "conv": ({"x", "w", "out"}, {"bias": None, "stride": [1], "padding": [0], "dilation": [1], "groups": 1}),
        "copy": ({"from", "to"}, {}),
        "fill": ({"to", "value"}, {}),
    }
    required, defaults = fields[kind]
    want(
        required <= set(o) <= required | set(defaults),
        where,
        sorted(o),
        f"{', '.join(sorted(required))} and optionally {', '.join(defaults) or 'nothing'}",
    )
    o = defaults | o
    for key in ("a", "b", "x", "w", "from"):
        if key in o:
            known.tensor(o[key], f"{where}.{key}")
    for key in ("out", "to"):
        if key in o:
            known.written(o[key], f"{where}.{key}")
    for key in ("alpha", "beta", "value"):
        want(key not in o or _is_number(o[key]), f"{where}.{key}", o.get(key), "a finite number")
    for key in ("trans_a", "trans_b"):
        want(key not in o or isinstance(o[key], bool), f"{where}.{key}", o.get(key), "true or false")
    if kind == "conv":
        want(o["bias"] is None or bool(known.tensor(o["bias"], f"{where}.bias")), where, o["bias"], "a tensor or null")
        for key in ("stride", "padding", "dilation"):
            least = 0 if key == "padding" else 1
            good = isinstance(o[key], list) and 1 <= len(o[key]) <= 3 and all(_is_int(v) and least <= v <= 4096 for v in o[key])
            want(good, f"{where}.{key}", o[key], f"1 to 3 integers from {least}")
        want(_is_int(o["groups"]) and 1 <= o["groups"] <= 65536, f"{where}.groups", o["groups"], "a positive integer")
    return Step(kind=kind, options=o)


def _kernel_step(value: dict, where: str, kernels: dict, known: _Names) -> dict[str, Any]:
    want(
        {"kernel", "grid", "block", "args"} <= set(value) <= {"kernel", "grid", "block", "args", "shared"},
        where,
        sorted(value),
        "kernel, grid, block, args and optionally shared",
    )
    name = value["kernel"]
    want(isinstance(name, str) and name in kernels, f"{where}.kernel", name, f"an entry of kernels.cu: {', '.join(sorted(kernels))}")
    options: dict[str, Any] = {"kernel": name}
    for key in ("grid", "block"):
        want(isinstance(value[key], list) and 1 <= len(value[key]) <= 3, f"{where}.{key}", value[key], "a list of 1 to 3 expressions")
        options[key] = tuple(known.check(_expression(v, f"{where}.{key}"), f"{where}.{key}") for v in value[key])
    options["shared"] = known.check(_expression(value.get("shared", 0), f"{where}.shared"), f"{where}.shared")
    parameters, args = kernels[name], value["args"]
    want(
        isinstance(args, list) and len(args) == len(parameters),
        f"{where}.args",
        args,
        f"{len(parameters)} arguments: {', '.join(p.text for p in parameters)}",
    )
    converted = []
    for i, (arg, parameter) in enumerate(zip(args, parameters, strict=True)):
        at = f"{where}.args[{i}] ({parameter.text})"
        if parameter.kind == "pointer":
            converted.append(known.tensor(arg, at))
        elif parameter.kind == "int":
            want(not isinstance(arg, float), at, arg, "an integer or an expression")
            converted.append(known.check(_expression(int(arg) if isinstance(arg, bool) else arg, at), at))
        else:
            scalar = isinstance(arg, str) and re.fullmatch(r"x\d{1,2}", arg) is not None
            want(scalar or _is_number(arg), at, arg, "a finite number, or x1 for a scalar argument of forward")
            converted.append(arg if scalar else float(arg))
    options["args"] = tuple(converted)
    return options


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e300


def bind(plan: Plan, tensors: dict[str, Tensor], scalars: dict[str, int | float | bool]) -> Bound:
    """Shapes in, numbers out. `tensors` are the inputs and `p.NAME`; `scalars` the numbers among forward's arguments.

    Raises PlanError where a name does not exist for this task, a size is out of bounds, or a grid exceeds CUDA's limits.
    """
    bound = _Binding(plan, tensors, scalars)
    buffers, views, outputs = {}, {}, {}
    for name, shape in plan.buffers.items():
        tensor = bound.tensor(name, f"buffers.{name}")
        if shape.view is None:
            buffers[name] = tensor
        else:
            base = bound.tensor(shape.view, f"buffers.{name}")
            want(base.numel == tensor.numel, f"buffers.{name}", f"{tensor.numel} elements", f"{base.numel} as in {shape.view}")
            views[name] = (shape.view, tensor)
    for name in plan.outputs:
        outputs[name] = bound.tensor(name, f"outputs.{name}")
    total = sum(t.bytes for t in [*buffers.values(), *outputs.values()])
    want(total <= MAX_BUFFER_BYTES, "buffers and outputs", f"{total} bytes", f"at most {MAX_BUFFER_BYTES}")
    launches = tuple(bound.step(step, f"steps[{i}]") for i, step in enumerate(plan.steps))
    return Bound(buffers=buffers, views=views, outputs=outputs, launches=launches)


class _Binding:
    """Resolves names on demand: let may use shapes of outputs and the other way round, but not in a circle."""

    def __init__(self, plan: Plan, tensors: dict[str, Tensor], scalars: dict[str, int | float | bool]):
        self.plan, self.tensors, self.scalars = plan, dict(tensors), scalars
        self.integers: dict[str, int] = {}
        self.open: list[str] = []

    def evaluate(self, node: Node, where: str) -> int:
        try:
            return value_of(node, lambda name, index: self.lookup(name, index, where))
        except ExpressionError as error:
            raise PlanError(f"{where}: {error}") from None

    def lookup(self, name: str, index: int | None, where: str) -> int:
        tensor = re.fullmatch(r"(.+)\.(shape|numel|ndim)", name)
        if tensor is None:
            if name in self.scalars:
                want(not isinstance(self.scalars[name], float), where, f"{name} = {self.scalars[name]}", "an integer")
                return int(self.scalars[name])
            return self._integer(name, where)
        shape = self.tensor(tensor[1], where).shape
        if tensor[2] != "shape":
            return math.prod(shape) if tensor[2] == "numel" else len(shape)
        want(index is not None and -len(shape) <= index < len(shape), where, f"{name}[{index}]", f"an index into {list(shape)}")
        return shape[index]

    def _integer(self, name: str, where: str) -> int:
        if name not in self.integers:
            want(name in self.plan.let, where, name, "an integer: no scalar argument or let of this name")
            self._enter(name)
            self.integers[name] = self.evaluate(self.plan.let[name], f"let.{name}")
            self.open.pop()
        return self.integers[name]

    def tensor(self, name: str, where: str) -> Tensor:
        if name not in self.tensors:
            shape = self.plan.buffers.get(name) or self.plan.outputs.get(name)
            wanted = f"one of this task's tensors {', '.join(sorted(self.tensors))}"
            want(shape is not None, where, name, wanted)
            self._enter(name)
            if shape.like is not None:
                self.tensors[name] = self.tensor(shape.like, where)
            else:
                dims = tuple(self.evaluate(node, where) for node in shape.dims)
                want(
                    all(d >= 0 for d in dims) and math.prod(dims) < 2**40, where, list(dims), "dimensions from 0, less than 2**40 elements"
                )
                self.tensors[name] = Tensor(shape=dims, dtype=shape.dtype or self.tensor(shape.view, where).dtype)
            self.open.pop()
        return self.tensors[name]

    def _enter(self, name: str) -> None:
        want(name not in self.open, "names", " -> ".join([*self.open, name]), "no circle")
        self.open.append(name)

    def step(self, step: Step, where: str) -> Launch:
        o = step.options
        if step.kind != "kernel":
            for key in ("a", "b", "x", "w", "bias", "from", "out", "to"):
                if o.get(key) is not None:
                    self.tensor(o[key], f"{where}.{step.kind}.{key}")
            if step.kind == "copy":
                a, b = self.tensor(o["from"], where), self.tensor(o["to"], where)
                want(a.numel == b.numel, where, f"{a.numel} elements into {b.numel}", "the same number")
            return Launch(kind=step.kind, options=o)
        grid = [self.evaluate(n, f"{where}.grid") for n in o["grid"]] + [1, 1]
        block = [self.evaluate(n, f"{where}.block") for n in o["block"]] + [1, 1]
        for key, dims, limit in (("grid", grid, GRID_LIMIT), ("block", block, BLOCK_LIMIT)):
            want(
                all(1 <= d <= most for d, most in zip(dims[:3], limit, strict=True)),
                f"{where}.{key}",
                dims[:3],
                f"each from 1 to {list(limit)}",
            )
        want(math.prod(block[:3]) <= 1024, f"{where}.block", block[:3], "at most 1024 threads")
        shared = self.evaluate(o["shared"], f"{where}.shared")
        want(0 <= shared <= MAX_SHARED, f"{where}.shared", shared, f"0 to {MAX_SHARED} bytes")
        args = tuple(
            self._argument(a, p, f"{where}.args[{i}]")
            for i, (a, p) in enumerate(zip(o["args"], self.plan.kernels[o["kernel"]], strict=True))
        )
        return Launch(
            kind="kernel", options={"kernel": o["kernel"]}, grid=tuple(grid[:3]), block=tuple(block[:3]), shared=shared, args=args
        )

    def _argument(self, arg: Any, parameter: Parameter, where: str) -> tuple:
        if parameter.kind == "pointer":
            self.tensor(arg, where)
            return ("pointer", arg)
        if parameter.kind == "int":
            value, bits = self.evaluate(arg, where), 8 * parameter.bytes
            want(-(2 ** (bits - 1)) <= value < 2**bits, where, value, f"a value that fits {parameter.text}")
            return ("int", parameter.bytes, value)
        if isinstance(arg, str):
            want(arg in self.scalars, where, arg, f"a scalar argument of forward: {sorted(self.scalars)}")
            arg = float(self.scalars[arg])
        return ("float", parameter.bytes, arg)
