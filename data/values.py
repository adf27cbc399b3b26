"""Rules of the values that a composition may take: an interval and a few marks, followed from operator to operator.

They keep synthesis from making tasks that overflow, do nothing, or give the same output for every input; `data.selection` measures.
A rule maps (Values, arguments, shape of the input) to the Values after, or None where the operator should not be applied.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values:
    """What is known of a tensor's values before it is computed.

    `marks`: "low" and "high" where many elements sit exactly at the bound; "sum" and "square" where each row's sum, or sum of squares,
    is the same for every input.
    """

    lo: float = -6.0
    hi: float = 6.0
    marks: frozenset[str] = frozenset()

    @property
    def size(self) -> float:
        return max(abs(self.lo), abs(self.hi))


def clip(x: float) -> float:
    return max(-80.0, min(80.0, x))


def monotone(f, *, limit: float, low: float = -math.inf, high: float = math.inf, added: frozenset[str] = frozenset()):
    """A rising function: refused where |x| may pass `limit` (overflow, saturation), or all of x lies above `high` or below `low`."""

    def after(v: Values, args: dict[str, Any], shape: Shape) -> Values | None:
        if v.size > limit or v.lo >= high or v.hi <= low:
            return None
        return Values(lo=f(v.lo, args), hi=f(v.hi, args), marks=(v.marks & {"low", "high"}) | added)

    return after


def sigmoid(x: float, args=None) -> float:
    return 1.0 / (1.0 + math.exp(-clip(x)))


def dip(depth: float):
    """SiLU, GELU, Mish, Hardswish: near x for large x, near zero for small, with a dip below zero."""

    def after(v: Values, args, shape) -> Values | None:
        if v.lo >= 3 or v.hi <= -1 or v.size > 1e4:
            return None
        marks = frozenset({"low"}) if v.lo < -1 else v.marks & {"low", "high"} if v.lo >= 0 else frozenset()
        return Values(lo=depth if v.lo < 0 else v.lo * 0.5, hi=max(v.hi, 0.1), marks=marks)

    return after


def relu_rule(v: Values, args, shape) -> Values | None:
    return None if v.lo >= 0 or v.hi <= 0 else Values(lo=0.0, hi=v.hi, marks=frozenset({"low"}) | (v.marks & {"high"}))


def clamp_rule(v: Values, args, shape) -> Values | None:
    lo, hi = args["min"], args["max"]
    if v.lo >= hi or v.hi <= lo or (v.lo >= lo and v.hi <= hi):
        return None
    marks = {"low"} if v.lo < lo else v.marks & {"low"}
    marks |= {"high"} if v.hi > hi else v.marks & {"high"}
    return Values(lo=max(lo, v.lo), hi=min(hi, v.hi), marks=frozenset(marks))


def abs_rule(v: Values, args, shape) -> Values | None:
    return None if v.lo >= 0 else Values(lo=max(0.0, -v.hi), hi=v.size, marks=v.marks & ({"square", "sum"} if v.hi <= 0 else {"square"}))


def then(first, second):
    def after(v: Values, args, shape) -> Values | None:
        middle = first(v, args, shape)
        return middle and second(middle, args, shape)

    return after


def square_rule(v: Values, args, shape) -> Values | None:
    return (
        None
        if v.size > 1e3
        else Values(
            lo=0.0 if v.lo < 0 < v.hi else min(v.lo**2, v.hi**2), hi=v.size**2, marks=v.marks & {"low"} if v.lo >= 0 else frozenset()
        )
    )


def wave(v: Values, args, shape) -> Values | None:
    return None if not 0.5 < v.size < 100 else Values(lo=-1.0, hi=1.0, marks=frozenset({"low", "high"}))


def linear(slope, offset):
    def after(v: Values, args, shape) -> Values | None:
        a, b = slope(args), offset(args)
        ends = (v.lo * a + b, v.hi * a + b)
        if max(map(abs, ends)) > 1e5:
            return None
        marks = v.marks if a > 0 else frozenset({"low": "high", "high": "low"}.get(m, m) for m in v.marks)
        return Values(lo=min(ends), hi=max(ends), marks=marks - ({"square"} if b else set()))

    return after


def pair(f):
    """Second operand in [-6, 6] (a fresh input) or near it (a parameter)."""

    def after(v: Values, args, shape) -> Values | None:
        ends = [f(x, y) for x in (v.lo, v.hi) for y in (-6.0, 6.0)]
        if v.size < 0.5:  # lost beside the second operand
            return None
        return Values(lo=min(ends), hi=max(ends)) if max(map(abs, ends)) < 1e5 else None

    return after


def extreme(f):
    def after(v: Values, args, shape) -> Values | None:
        return None if v.lo > 1 or v.hi < 1 or v.size > 50 else Values(lo=f(v.lo, -6.0), hi=f(v.hi, 6.0))

    return after


def row_values(lo_hi, *, gone: str, marks: frozenset[str] = frozenset(), least_spread: float = 0.0):
    """A row operator; refused on rows whose mark `gone` would make the result constant, and on values closer than `least_spread`."""

    def after(v: Values, args, shape) -> Values | None:
        if set(gone.split()) & v.marks or v.hi - v.lo < least_spread:
            return None
        lo, hi = lo_hi(v, shape[-1])
        return Values(lo=lo, hi=hi, marks=marks) if max(abs(lo), abs(hi)) < 1e6 else None

    return after
