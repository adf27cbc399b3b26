"""The catalogue of operators that tasks are composed of: one record an operator.

A new operator is one more entry of `CATALOGUE`. What it says of itself is checked: `tests/data/test_operators.py` traces every spelling
and compares it with `traced`. A composition keeps an interval of values (`Values`), so that nothing overflows, no operator is a no-op
and no output is constant.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from random import Random
from typing import Any

from data.values import (
    Shape,
    Values,
    abs_rule,
    clamp_rule,
    clip,
    dip,
    extreme,
    linear,
    monotone,
    pair,
    relu_rule,
    row_values,
    sigmoid,
    square_rule,
    then,
    wave,
)

CONSTANTS = (0.1, 0.2, 0.5, 0.75, 1.5, 2.0, 3.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spelling:
    """One way to write an operator. Templates hold {x}, {y} (second operand), {m} (the module attribute) and the arguments by name."""

    call: str
    init: str | None = None
    """The module to build, for example "nn.LeakyReLU({slope})"."""
    parameters: tuple[tuple[str, str], ...] = ()
    """(template name, initial value) of parameters that this spelling needs, each over the last dimension."""
    style: str = "functional"
    """functional, torch, method, module or operator."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operator:
    """Example: the entries of `CATALOGUE` below."""

    name: str
    family: str
    traced: tuple[str, ...]
    """The operators of `data.trace` that every spelling amounts to."""
    spellings: tuple[Spelling, ...]
    values: Callable[[Values, dict[str, Any], Shape], Values | None]
    """Values after the operator; None where it would overflow, do nothing or leave a constant."""
    arguments: Callable[[Random, Shape], dict[str, Any]] = lambda rng, shape: {}
    shape: Callable[[Shape, dict[str, Any]], Shape] = lambda shape, args: shape
    operand: tuple[str, ...] = ()
    """Kinds of the second operand: "input" (same shape), "row" (a parameter over the last dimension)."""
    saturates: bool = False
    """True where far values all become the same: not applied to what a reduction left, which may lie far out as a whole."""
    rowwise: bool = False
    """True where each output depends on a whole row."""
    least_row: int = 1
    """Shortest last dimension on which it means anything; 2 and more also refuses scalars."""


# ------------------------------------------------------------------------------- arguments and shapes


def _constant(name: str, choices=CONSTANTS):
    return lambda rng, shape: {name: rng.choice(choices)}


def _bounds(rng: Random, shape: Shape) -> dict[str, Any]:
    low, high = rng.choice(((-1.0, 1.0), (-2.0, 2.0), (-0.5, 0.5), (0.0, 6.0), (-1.5, 3.0), (0.0, 1.0), (-3.0, 3.0)))
    return {"min": low, "max": high}


def _keepdim(rng: Random, shape: Shape) -> dict[str, Any]:
    return {"keepdim": rng.random() < 0.5}


def _reduced(shape: Shape, args: dict[str, Any]) -> Shape:
    return (*shape[:-1], 1) if args["keepdim"] else shape[:-1]


def _eps(rng: Random, shape: Shape) -> dict[str, Any]:
    return {"eps": rng.choice((1e-5, 1e-6)), "row": shape[-1]}


# ------------------------------------------------------------------------------------------ spellings


def _spell(*texts: str, module: str | None = None) -> tuple[Spelling, ...]:
    """Spellings from call templates; the style follows from the text."""
    made = tuple(Spelling(call=t, style=_style(t)) for t in texts)
    return made + ((Spelling(call="{m}({x})", init=module, style="module"),) if module else ())


def _style(text: str) -> str:
    if text.startswith("{x}."):
        return "method"
    return {"F": "functional", "torch": "torch"}.get(text.partition(".")[0], "operator")


def _unary(name, family, values, *texts, module=None, traced=None, **more) -> Operator:
    return Operator(name=name, family=family, traced=traced or (name,), spellings=_spell(*texts, module=module), values=values, **more)


def _activations() -> tuple[Operator, ...]:
    def leak(x, args):
        return x if x > 0 else args["negative_slope"] * x

    def elu(x, args):
        return x if x > 0 else args["alpha"] * (math.exp(clip(x)) - 1)

    def softplus(x, args):
        return math.log1p(math.exp(clip(x))) if x < 20 else x

    def make(name, values, *texts, **more) -> Operator:
        return _unary(name, "activation", values, *texts, **more)

    return (
        make("relu", relu_rule, "F.relu({x})", "torch.relu({x})", "{x}.relu()", saturates=True, module="nn.ReLU()"),
        make(
            "leaky_relu",
            monotone(leak, limit=1e5, high=0.0),
            "F.leaky_relu({x}, negative_slope={negative_slope})",
            "F.leaky_relu({x}, {negative_slope})",
            module="nn.LeakyReLU({negative_slope})",
            arguments=_constant("negative_slope", (0.01, 0.1, 0.2, 0.5)),
        ),
        make(
            "sigmoid",
            monotone(sigmoid, limit=40),
            "torch.sigmoid({x})",
            "F.sigmoid({x})",
            "{x}.sigmoid()",
            module="nn.Sigmoid()",
            saturates=True,
        ),
        make(
            "tanh",
            monotone(lambda x, a: math.tanh(x), limit=20),
            "torch.tanh({x})",
            "F.tanh({x})",
            "{x}.tanh()",
            module="nn.Tanh()",
            saturates=True,
        ),
        make("silu", dip(-0.28), "F.silu({x})", saturates=True, module="nn.SiLU()"),
        make("gelu", dip(-0.17), "F.gelu({x})", saturates=True, module="nn.GELU()"),
        make(
            "gelu_tanh",
            dip(-0.17),
            'F.gelu({x}, approximate="tanh")',
            saturates=True,
            module='nn.GELU(approximate="tanh")',
            traced=("gelu",),
        ),
        make(
            "elu",
            monotone(elu, limit=1e4, high=0.0, added=frozenset({"low"})),
            "F.elu({x}, alpha={alpha})",
            "F.elu({x}, {alpha})",
            module="nn.ELU(alpha={alpha})",
            arguments=_constant("alpha", (0.1, 0.5, 0.75, 1.0, 1.5)),
        ),
        make("softplus", monotone(softplus, limit=1e4, high=10.0, low=-10.0), "F.softplus({x})", module="nn.Softplus()"),
        make(
            "hardtanh",
            clamp_rule,
            "F.hardtanh({x}, {min}, {max})",
            "F.hardtanh({x}, min_val={min}, max_val={max})",
            module="nn.Hardtanh({min}, {max})",
            saturates=True,
            traced=("clamp",),
            arguments=_bounds,
        ),
        make(
            "relu6",
            lambda v, a, s: clamp_rule(v, {"min": 0.0, "max": 6.0}, s),
            "F.relu6({x})",
            module="nn.ReLU6()",
            saturates=True,
            traced=("clamp",),
        ),
        make("hardswish", dip(-0.375), "F.hardswish({x})", saturates=True, module="nn.Hardswish()"),
        make(
            "hardsigmoid",
            monotone(lambda x, a: min(1.0, max(0.0, x / 6 + 0.5)), limit=20, low=-3, high=3, added=frozenset({"low", "high"})),
            "F.hardsigmoid({x})",
            module="nn.Hardsigmoid()",
            saturates=True,
        ),
        make("mish", dip(-0.31), "F.mish({x})", saturates=True, module="nn.Mish()"),
    )


def _mathematics() -> tuple[Operator, ...]:
    def root(v: Values, args, shape) -> Values:
        return Values(lo=math.sqrt(v.lo), hi=math.sqrt(v.hi))

    def log1p(v: Values, args, shape) -> Values:
        return Values(lo=math.log1p(v.lo), hi=math.log1p(v.hi))

    def make(name, values, *texts, **more) -> Operator:
        return _unary(name, "math", values, *texts, **more)

    return (
        make("abs", abs_rule, "torch.abs({x})", "{x}.abs()"),
        make("neg", linear(lambda a: -1.0, lambda a: 0.0), "torch.neg({x})", "-{x}", "{x}.neg()"),
        make("square", square_rule, "torch.square({x})", "{x} ** 2", "{x}.pow(2)", "torch.pow({x}, 2)", "{x}.square()", traced=("pow",)),
        make("sqrt_abs", then(abs_rule, root), "torch.sqrt(torch.abs({x}))", "{x}.abs().sqrt()", traced=("abs", "sqrt")),
        make("exp", monotone(lambda x, a: math.exp(clip(x)), limit=10), "torch.exp({x})", "{x}.exp()"),
        make("sin", wave, "torch.sin({x})", "{x}.sin()"),
        make("cos", wave, "torch.cos({x})", "{x}.cos()"),
        make("log1p_abs", then(abs_rule, log1p), "torch.log1p(torch.abs({x}))", "torch.log1p({x}.abs())", traced=("abs", "log1p")),
    )


def _scalars() -> tuple[Operator, ...]:
    value = _constant("value")

    def make(name, slope, offset, *texts, traced) -> Operator:
        return _unary(name, "scalar", linear(slope, offset), *texts, traced=(traced,), arguments=value)

    return (
        make(
            "add_scalar", lambda a: 1.0, lambda a: a["value"], "{x} + {value}", "torch.add({x}, {value})", "{x}.add({value})", traced="add"
        ),
        make(
            "sub_scalar", lambda a: 1.0, lambda a: -a["value"], "{x} - {value}", "torch.sub({x}, {value})", "{x}.sub({value})", traced="sub"
        ),
        make("rsub_scalar", lambda a: -1.0, lambda a: a["value"], "{value} - {x}", "torch.rsub({x}, {value})", traced="rsub"),
        make(
            "mul_scalar",
            lambda a: a["value"],
            lambda a: 0.0,
            "{x} * {value}",
            "{value} * {x}",
            "torch.mul({x}, {value})",
            "{x}.mul({value})",
            traced="mul",
        ),
        make(
            "div_scalar",
            lambda a: 1 / a["value"],
            lambda a: 0.0,
            "{x} / {value}",
            "torch.div({x}, {value})",
            "{x}.div({value})",
            traced="div",
        ),
    )


def _binaries() -> tuple[Operator, ...]:
    def make(name, values, *texts, traced=None, operand=("input", "row")) -> Operator:
        return Operator(
            name=name, family="binary", traced=traced or (name,), spellings=_spell(*texts), values=values, operand=operand, least_row=8
        )

    return (
        make("add", pair(lambda x, y: x + y), "{x} + {y}", "torch.add({x}, {y})", "{x}.add({y})"),
        make("sub", pair(lambda x, y: x - y), "{x} - {y}", "torch.sub({x}, {y})", "{x}.sub({y})"),
        make("mul", pair(lambda x, y: x * y), "{x} * {y}", "torch.mul({x}, {y})", "{x}.mul({y})"),
        make("maximum", extreme(max), "torch.maximum({x}, {y})", "torch.max({x}, {y})"),
        make("minimum", extreme(min), "torch.minimum({x}, {y})", "torch.min({x}, {y})"),
        make(
            "div_abs",
            pair(lambda x, y: x),
            "{x} / (torch.abs({y}) + 1.0)",
            "{x} / ({y}.abs() + 1.0)",
            "torch.div({x}, torch.abs({y}) + 1.0)",
            traced=("abs", "add", "div"),
            operand=("input",),
        ),
    )


def _reductions() -> tuple[Operator, ...]:
    def make(name, values, *texts, traced=None) -> Operator:
        return Operator(
            name=name,
            family="reduction",
            traced=traced or (name,),
            spellings=_spell(*texts),
            values=values,
            arguments=_keepdim,
            shape=_reduced,
            rowwise=True,
            least_row=8,
        )

    return (
        make(
            "sum",
            row_values(lambda v, row: (v.lo * row, v.hi * row), gone="sum"),
            "torch.sum({x}, dim=-1, keepdim={keepdim})",
            "{x}.sum(dim=-1, keepdim={keepdim})",
            "{x}.sum(-1, keepdim={keepdim})",
        ),
        make(
            "mean",
            row_values(lambda v, row: (v.lo, v.hi), gone="sum"),
            "torch.mean({x}, dim=-1, keepdim={keepdim})",
            "{x}.mean(dim=-1, keepdim={keepdim})",
            "{x}.mean(-1, keepdim={keepdim})",
        ),
        make(
            "amax",
            row_values(lambda v, row: (v.lo, v.hi), gone="high"),
            "torch.amax({x}, dim=-1, keepdim={keepdim})",
            "{x}.amax(dim=-1, keepdim={keepdim})",
            "torch.max({x}, dim=-1, keepdim={keepdim}).values",
            "{x}.max(dim=-1, keepdim={keepdim})[0]",
        ),
        make(
            "amin",
            row_values(lambda v, row: (v.lo, v.hi), gone="low"),
            "torch.amin({x}, dim=-1, keepdim={keepdim})",
            "{x}.amin(dim=-1, keepdim={keepdim})",
            "torch.min({x}, dim=-1, keepdim={keepdim}).values",
        ),
        make(
            "mean_square",
            lambda v, args, shape: None if "square" in v.marks else square_rule(v, args, shape),
            "torch.mean({x} ** 2, dim=-1, keepdim={keepdim})",
            "{x}.pow(2).mean(dim=-1, keepdim={keepdim})",
            "torch.square({x}).mean(dim=-1, keepdim={keepdim})",
            traced=("pow", "mean"),
        ),
    )


def _rows() -> tuple[Operator, ...]:
    def make(name, family, values, spellings, traced=None, arguments=lambda rng, shape: {}) -> Operator:
        return Operator(
            name=name,
            family=family,
            traced=traced or (name,),
            spellings=spellings,
            values=values,
            arguments=arguments,
            rowwise=True,
            least_row=8,
        )

    affine = (("weight", "torch.ones({row})"), ("bias", "torch.zeros({row})"))
    rms = ("pow", "mean", "add", "rsqrt", "mul")
    unit = row_values(lambda v, row: (-6.0, 6.0), gone="sum square", marks=frozenset({"sum", "square"}))
    return (
        make(
            "softmax",
            "softmax",
            row_values(lambda v, row: (0.0, min(1.0, 50.0 / row)), gone="none", least_spread=0.5, marks=frozenset({"sum"})),
            _spell("F.softmax({x}, dim=-1)", "torch.softmax({x}, dim=-1)", "{x}.softmax(dim=-1)", module="nn.Softmax(dim=-1)"),
        ),
        make(
            "log_softmax",
            "softmax",
            row_values(lambda v, row: (-2 * v.size - math.log(row), 0.0), gone="none", least_spread=0.5),
            _spell(
                "F.log_softmax({x}, dim=-1)", "torch.log_softmax({x}, dim=-1)", "{x}.log_softmax(dim=-1)", module="nn.LogSoftmax(dim=-1)"
            ),
        ),
        make(
            "layer_norm",
            "norm",
            unit,
            _spell("F.layer_norm({x}, ({row},), eps={eps})", module="nn.LayerNorm({row}, eps={eps}, elementwise_affine=False)"),
            arguments=_eps,
        ),
        make(
            "layer_norm_affine",
            "norm",
            unit,
            (
                Spelling(call="F.layer_norm({x}, ({row},), {weight}, {bias}, {eps})", parameters=affine),
                Spelling(call="{m}({x})", init="nn.LayerNorm({row}, eps={eps})", style="module"),
            ),
            traced=("layer_norm",),
            arguments=_eps,
        ),
        make(
            "rms_norm",
            "norm",
            row_values(lambda v, row: (-6.0, 6.0), gone="square", marks=frozenset({"square"})),
            (
                *_spell("F.rms_norm({x}, ({row},), eps={eps})", module="nn.RMSNorm({row}, eps={eps}, elementwise_affine=False)"),
                Spelling(call="{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + {eps})", style="operator"),
                Spelling(call="{x} * torch.rsqrt(torch.mean({x} ** 2, dim=-1, keepdim=True) + {eps})", style="operator"),
            ),
            traced=rms,
            arguments=_eps,
        ),
        make(
            "rms_norm_affine",
            "norm",
            row_values(lambda v, row: (-6.0, 6.0), gone="square", marks=frozenset({"square"})),
            (
                Spelling(call="F.rms_norm({x}, ({row},), {weight}, {eps})", parameters=affine[:1]),
                Spelling(call="{m}({x})", init="nn.RMSNorm({row}, eps={eps})", style="module"),
            ),
            traced=(*rms, "mul"),
            arguments=_eps,
        ),
        make(
            "l2_normalize",
            "norm",
            row_values(
                lambda v, row: (-min(1.0, 8 / math.sqrt(row)), min(1.0, 8 / math.sqrt(row))), gone="square", marks=frozenset({"square"})
            ),
            _spell("F.normalize({x}, dim=-1)", "F.normalize({x}, p=2, dim=-1)", "{x} / {x}.norm(dim=-1, keepdim=True).clamp(min=1e-12)"),
            traced=("vector_norm", "clamp", "div"),
        ),
    )


CATALOGUE: dict[str, Operator] = {
    operator.name: operator for operator in (*_activations(), *_mathematics(), *_scalars(), *_binaries(), *_reductions(), *_rows())
}
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(operator.family for operator in CATALOGUE.values()))
