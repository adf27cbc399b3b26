"""Shape regimes: the same names for every family, each meaning what makes the fastest kernel change in that family's layout.

A regime is a function of a random source and of a number of elements; it gives the shape of a task's main input, near that size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from data.values import Shape

Regime = Callable[[Random, int], Shape]


# ------------------------------------------------------------------------------------------------ rows


def _near(rng: Random, elements: int, row: int) -> Shape:
    return (max(1, elements // row), row)


def _many_short_rows(rng: Random, elements: int) -> Shape:
    return _near(rng, elements, rng.choice((16, 24, 32, 48, 64, 96)))


def _few_long_rows(rng: Random, elements: int) -> Shape:
    rows = rng.choice((2, 4, 6, 8, 12, 16))
    return (rows, max(64, elements // rows // 64 * 64))


def _square(rng: Random, elements: int) -> Shape:
    side = max(16, math.isqrt(elements) // 32 * 32)
    return (side, side)


def _odd(rng: Random, elements: int) -> Shape:
    row = rng.choice((63, 127, 255, 331, 509, 777, 1021, 1531, 2047))
    return ((elements // row - 1) | 1, row) if elements // row > 2 else (3, row)


def _tall(rng: Random, elements: int) -> Shape:
    return _near(rng, elements, rng.choice((128, 160, 192, 256)))


def _wide(rng: Random, elements: int) -> Shape:
    return _near(rng, elements, rng.choice((2048, 3072, 4096, 6144, 8192)))


def _batched(rng: Random, elements: int) -> Shape:
    batch, row = rng.choice((2, 4, 8, 16)), rng.choice((64, 128, 256, 512))
    return (batch, max(1, elements // batch // row), row)


def _outer(rng: Random, elements: int) -> Shape:
    inner, batch = rng.choice((16, 32, 64, 128)), rng.choice((1, 2, 4, 8))
    return (batch, max(8, elements // batch // inner), inner)


def _strided(rng: Random, elements: int) -> Shape:
    return _near(rng, elements, rng.choice((128, 192, 320, 512)))


REGIMES: dict[str, Regime] = {
    "many_short_rows": _many_short_rows,
    "few_long_rows": _few_long_rows,
    "square": _square,
    "odd": _odd,
    "tall": _tall,
    "wide": _wide,
    "batched": _batched,
}
"""Regimes of the hand-written catalogue, whose operators work along the last dimension."""
ROWS: dict[str, Regime] = REGIMES | {"outer": _outer, "strided": _strided}
"""With the reduced dimension not the last one (outer), and with an input that is a transposed view (strided)."""


# ---------------------------------------------------------------------------------------------- images


def _image(dims: int) -> dict[str, Regime]:
    """Inputs (batch, channels, *spatial) with `dims` spatial dimensions."""

    def side(pixels: float) -> int:
        return max(8, round(max(1.0, pixels) ** (1 / dims)))

    def of(batches: tuple[int, ...], channels: tuple[int, ...], form=lambda s: (s,) * dims) -> Regime:
        def shape(rng: Random, elements: int) -> Shape:
            batch, channel = rng.choice(batches), rng.choice(channels)
            return (batch, channel, *form(side(elements / batch / channel)))

        return shape

    def planes(sides: tuple[int, ...], channels: tuple[int, ...]) -> Regime:
        def shape(rng: Random, elements: int) -> Shape:
            length, channel = rng.choice(sides), rng.choice(channels)
            return (max(1, elements // channel // length**dims), channel, *(length,) * dims)

        return shape

    def even(rng: Random, elements: int) -> Shape:
        length = max(8, round(elements ** (1 / (dims + 1))) // 4 * 4)
        return (1, length, *(length,) * dims)

    def stretched(factor: float):
        return lambda s: (max(8, int(s * factor)), *(s,) * (dims - 2), max(8, int(s / factor)))

    small = (16, 24, 32) if dims == 1 else (7, 8, 14) if dims == 2 else (4, 6, 8)
    return {
        "many_short_rows": planes(small, (32, 64, 128)),
        "few_long_rows": of((1, 2), (4, 8, 16)),
        "square": even,
        "odd": of((1, 3, 5), (9, 15, 33, 51), lambda s: (s | 1,) * dims),
        # A line has no aspect: there many channels or one.
        "tall": of((2, 4), (256, 384)) if dims == 1 else of((2, 4), (16, 32), stretched(3.0)),
        "wide": of((2, 4), (1, 2)) if dims == 1 else of((2, 4), (16, 32), stretched(1 / 3)),
        "batched": of((16, 32, 64), (8, 16, 32)),
        "outer": of((1, 2), (128, 256, 512)),
        "strided": of((2, 4, 8), (32, 64)),
    }


# ---------------------------------------------------------------------------- matrices and sequences


def _matrix(rows_of: Callable[[Random, int], int], inner: tuple[int, ...]) -> Regime:
    def shape(rng: Random, elements: int) -> Shape:
        k = min(rng.choice(inner), max(16, elements // 4))
        return (rows_of(rng, max(1, elements // k)), k)

    return shape


def _most(rng: Random, rows: int) -> int:
    return rows


MATRIX: dict[str, Regime] = {
    "many_short_rows": _matrix(_most, (16, 32, 64)),
    "few_long_rows": lambda rng, n: (rows := rng.choice((1, 2, 4, 8, 16)), max(64, min(8192, n // rows) // 64 * 64)),
    "square": _square,
    "odd": lambda rng, n: (max(3, n // (k := rng.choice((63, 127, 257, 509))) | 1), k),
    "tall": _matrix(_most, (128, 192, 256)),
    "wide": _matrix(_most, (1024, 1536, 2048)),
    "batched": _batched,
    "outer": _matrix(_most, (8, 16)),
    "strided": _matrix(_most, (256, 384, 512)),
}
"""(rows, inner) of the left factor; `wide` and `outer` stand for many output columns, `few_long_rows` for a decoding step."""


def _sequence(batches, heads, widths, length_of=lambda n: max(8, n)) -> Regime:
    def shape(rng: Random, elements: int) -> Shape:
        batch, head, width = rng.choice(batches), rng.choice(heads), rng.choice(widths)
        return (batch, head, length_of(elements // (batch * head * width)), width)

    return shape


SEQUENCE: dict[str, Regime] = {
    "many_short_rows": lambda rng, n: (max(1, n // (4 * (t := rng.choice((16, 32, 64))) * 32)), 4, t, 32),
    "few_long_rows": _sequence((1,), (1, 2), (64,), lambda n: min(4096, max(8, n))),
    "square": _sequence((2, 4), (4, 8), (64,), lambda n: min(1024, max(8, n // 8 * 8))),
    "odd": _sequence((1, 3), (3, 5), (40, 72), lambda n: min(1023, max(9, n)) | 1),
    "tall": _sequence((1, 2), (4, 8), (64,), lambda n: min(2048, max(8, n))),
    "wide": _sequence((8, 16), (8, 16), (64,), lambda n: min(2048, max(8, n))),
    "batched": _sequence((16, 32), (2, 4), (32, 64), lambda n: min(512, max(8, n))),
    "outer": _sequence((1, 2), (16, 32), (32, 64), lambda n: min(1024, max(8, n))),
    "strided": _sequence((2, 4), (4, 8), (64,), lambda n: min(1024, max(8, n))),
}
"""(batch, heads, length, width) of the queries; in `tall` the keys are few, in `wide` the queries are (a decoding step)."""


def _tokens(regime: Regime) -> Regime:
    def shape(rng: Random, elements: int) -> Shape:
        batch, heads, length, width = regime(rng, elements)
        return (batch, length, heads * width)

    return shape


def _stacked(regime: Regime) -> Regime:
    def shape(rng: Random, elements: int) -> Shape:
        batch = rng.choice((2, 4, 8, 16))
        inner = regime(rng, max(64, elements // batch))
        return inner if len(inner) == 3 else (batch, *inner)

    return shape


LAYOUTS: dict[str, dict[str, Regime]] = {
    "rows": ROWS,
    "image1": _image(1),
    "image2": _image(2),
    "image3": _image(3),
    "matrix": MATRIX,
    "rows3": {name: _stacked(regime) for name, regime in MATRIX.items()},
    "sequence": SEQUENCE,
    "tokens": {name: _tokens(regime) for name, regime in SEQUENCE.items()},
}
"""Shapes of the main input by layout and regime; every layout knows every regime."""
REGIME_NAMES: tuple[str, ...] = tuple(ROWS)
