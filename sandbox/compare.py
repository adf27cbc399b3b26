"""Is an output right? Tolerance from the reference's own rounding noise and the scale of the element's own row.

Two bounds: one on every element, which has to leave room for the worst that honest rounding does, and one on the mean error, which a
lower precision inside exceeds everywhere at once. Works on torch tensors of any device, in pieces of bounded memory; expected values and
tolerances are made where no candidate can reach them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

LOWEST = {"float32": 2e-5, "float64": 1e-10, "bfloat16": 2e-2, "float16": 3e-3}
"""Relative error of an element that any honest order of operations is granted, by output dtype."""
HIGHEST = {"float32": 1e-3, "float64": 1e-6, "bfloat16": 2e-1, "float16": 2e-2}
"""The widest tolerance; noise that asks for more makes a distribution unusable."""
BULK = {"float32": 2e-5, "float64": 1e-10, "bfloat16": 2e-3, "float16": 2e-4}
"""Mean relative error that is granted: above what an honest fp32 kernel leaves, below fp16 or TF32 inside (bf16: fp8; fp16: bf16)."""
FACTOR = {"float32": 10.0, "float64": 10.0, "bfloat16": 4.0, "float16": 4.0}
"""How much more than the reference an honest candidate may err. Low precisions: eager rounds after each operator, a kernel less often."""
BULK_FACTOR = {"float32": 10.0, "float64": 10.0, "bfloat16": 2.5, "float16": 2.5}
"""The same of the mean error, which is nearly the same for all honest kernels of a precision."""
ABSOLUTE = 0.05
"""Of LOWEST, times the typical output of the task's own inputs: fp32 intermediates near one leave such an error on outputs near nothing."""
COARSE_FACTOR, COARSE_HIGHEST = 4.0, 5e-2
"""For fp32 references that run in TF32 by torch's defaults (convolutions on a GPU): the noise is TF32's own, its mean still tells bf16."""
FAR = 1e5
"""A value so many times the lower magnitudes of its output (a mask's fill, say) says nothing of its neighbours' scale."""
BULK_LEAST = 64
"""Elements from which a mean error is a statistic."""
SAMPLE = 65536
"""Evenly spread elements that stand for an output in statistics."""
TYPICAL = 0.995
"""Quantile of the noise that sets the tolerance; what lies above it is granted to those elements alone."""
EFFECT = 10.0
"""Times LOWEST: what a buffer or an input may differ by from what the reference leaves there."""
KEPT_LENGTH = 16
"""Elements of a row from which its scale is kept rather than found anew."""
PIECE, CACHED_PIECE = 1 << 24, 1 << 17
"""Elements compared at a time: bounded memory on a GPU, and on a CPU as many as its caches hold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What one output may differ by: `relative * (|expected| + row scale) + absolute` an element, `bulk` in the mean of the relative error.

    `far`: magnitudes above it are left out of row scales. `slack`: (flat positions, allowed gaps) of elements that an ulp of the inputs
    moves further than that; an integer element there may be anything. `scale`: the expected output's row scales [rows, 1], where they are kept.
    """

    relative: float
    bulk: float = float("inf")
    absolute: float = 0.0
    far: float = float("inf")
    slack: tuple | None = None
    scale: Any = dataclasses.field(default=None, compare=False)


def name_of(dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def all_finite(value) -> bool:
    """No NaN and no infinity, in one pass over the memory."""
    import torch

    return not value.numel() or not value.is_floating_point() or bool(torch.stack(torch.aminmax(value)).isfinite().all())


def changed(value, before) -> bool:
    """Whether a value is no longer what it was, bit for bit but for NaN. Plain values never change."""
    import torch

    if not isinstance(value, torch.Tensor) or torch.equal(value, before):
        return False
    return not (value.is_floating_point() and torch.allclose(value, before, rtol=0, atol=0, equal_nan=True))


def _piece(value) -> int:
    return CACHED_PIECE if value.device.type == "cpu" else PIECE


def _quantile(values, q: float) -> float:
    """The smallest element of a flat tensor that a share `q` of it does not exceed; selecting is ten times cheaper than sorting."""
    return float(values.kthvalue(1 + math.ceil(q * (values.numel() - 1))).values)


def _sample(value, count: int = SAMPLE):
    """At most `count` elements, evenly spread."""
    flat = value.reshape(-1)
    return flat if flat.numel() <= count else flat[:: flat.numel() // count + 1]


def far_of(expected) -> float:
    """Magnitude from which values of an output are left out of its row scales; infinity where there are none."""
    import torch

    if not expected.numel() or not expected.is_floating_point():
        return float("inf")
    magnitude = _sample(expected, 4096).double().abs()
    magnitude = magnitude[magnitude.isfinite() & (magnitude > 0)]
    if not magnitude.numel():
        return float("inf")
    limit = FAR * _quantile(magnitude, 0.1)
    low, high = (float(v) for v in torch.aminmax(expected))
    return float("inf") if max(-low, high) <= limit else limit


def typical(expected, far: float) -> float:
    """Mean magnitude of an output, without infinities and far values."""
    magnitude = _sample(expected).double().abs()
    magnitude = magnitude[magnitude.isfinite() & (magnitude <= far)]
    return float(magnitude.mean()) if magnitude.numel() else 0.0


def _row_length(shape) -> int:
    """Elements along the last dimension longer than one."""
    return next((size for size in reversed(shape) if size > 1), 1)


def _rows(value, like):
    return value.reshape(-1, _row_length(like.shape))


def row_scale(rows, far: float):
    """Mean magnitude of each row of a matrix, (rows, 1): one far value loosens nothing in other rows, and those beyond `far` nothing at all."""
    import torch

    total = torch.zeros(rows.shape[0], 1, dtype=torch.float64, device=rows.device)
    count = torch.zeros_like(total)
    piece = _piece(rows)
    for begin in range(0, rows.shape[1], piece):
        magnitude = rows[:, begin : begin + piece].abs()
        if far < float("inf") or not all_finite(magnitude):
            kept = magnitude.isfinite() & (magnitude <= far)
            count += kept.sum(1, keepdim=True)
            magnitude = magnitude.where(kept, 0.0)
        else:
            count += magnitude.shape[1]
        total += magnitude.sum(1, keepdim=True, dtype=torch.float64 if rows.dtype is torch.float64 else torch.float32)
    return (total / count.clamp_min(1)).to(rows.dtype)


def _blocks(rows):
    """Slices of some rows each, of bounded size."""
    step = max(1, _piece(rows) // rows.shape[1])
    return [slice(top, min(top + step, rows.shape[0])) for top in range(0, rows.shape[0], step)]


def _scale(block, far: float):
    import torch

    return row_scale(block if block.dtype is torch.float64 else block.float(), far)


def scales(expected, far: float):
    """Row scales of a floating output [rows, 1], to be kept beside it: an answer is compared many times. None where rows are so short that they would
    be no small part of it."""
    import torch

    if not expected.numel() or not expected.is_floating_point() or _row_length(expected.shape) < KEPT_LENGTH:
        return None
    rows = _rows(expected, expected)
    return torch.cat([_scale(rows[some], far) for some in _blocks(rows)])


def _pieces(expected, far: float, kept=None):
    """(rows, columns, scale) of pieces of an output seen as a matrix of its rows, each of bounded size. kept: its scales, where they are known."""
    rows, piece = _rows(expected, expected), _piece(expected)
    for some in _blocks(rows):
        scale = _scale(rows[some], far) if kept is None else kept[some]
        for left in range(0, rows.shape[1], piece):
            yield some, slice(left, min(left + piece, rows.shape[1])), scale


def noise(low, high, *, absolute: float = 0.0, far: float = float("inf")) -> tuple[float, float]:
    """Error of the reference at its precision, `low`, against the fp64 oracle `high`, relative to value and row scale: (TYPICAL quantile, mean).

    What `absolute` covers is no error. Places where either is not finite are left out.
    """
    import torch

    found, total, count = [], 0.0, 0
    low_rows, high_rows = _rows(low, high), _rows(high, high)
    for some, columns, scale in _pieces(high, far):
        exact = high_rows[some, columns].double()
        gap = (low_rows[some, columns].double() - exact).abs_().sub_(absolute).clamp_min_(0.0)
        ratio = gap.div_(exact.abs_().add_(scale).clamp_min_(1e-300))
        whole = float(ratio.sum())
        if not math.isfinite(whole):
            ratio = ratio[ratio.isfinite()]
            whole = float(ratio.sum())
        if ratio.numel():
            # Exact zeros of an output say nothing of the precision
            total, count = total + whole, count + int(exact.count_nonzero())
            found.append(ratio.reshape(-1)[:: high.numel() // SAMPLE + 1])
    if not found:
        return 0.0, 0.0
    return _quantile(torch.cat(found), TYPICAL), total / max(count, 1)


def tolerance_of(dtype, typical_noise: float, mean_noise: float, *, absolute: float = 0.0, coarse: bool = False) -> Tolerance | None:
    """Tolerance for a noise; None when it is too high to tell right from wrong. Integers and booleans: exact.

    `coarse`: the reference runs in TF32 by torch's defaults.
    """
    name = name_of(dtype)
    if name not in LOWEST:
        return Tolerance(relative=0.0)
    factor, highest = (COARSE_FACTOR, COARSE_HIGHEST) if coarse else (FACTOR[name], HIGHEST[name])
    bulk_factor = COARSE_FACTOR if coarse else BULK_FACTOR[name]
    if factor * typical_noise > highest:
        return None
    return Tolerance(
        relative=max(LOWEST[name], factor * typical_noise),
        bulk=max(BULK[name], bulk_factor * mean_noise),
        absolute=ABSOLUTE * LOWEST[name] * absolute,
    )


def beyond(value, expected, tolerance: Tolerance, factor: float) -> tuple | None:
    """Elements whose gap to `expected` beyond the absolute part, times `factor`, exceeds the tolerance: (flat positions, those gaps times
    `factor`), None without any.

    For integers the factor does not count.
    """
    import torch

    places, gaps = [], []
    length = _row_length(expected.shape)
    for some, columns, scale in _pieces(expected, tolerance.far, tolerance.scale):
        mine, exact = _rows(value, expected)[some, columns], _rows(expected, expected)[some, columns]
        if not expected.is_floating_point():
            over = mine != exact
            gap = over.double()
        else:
            if mine.dtype.itemsize < 4 or exact.dtype.itemsize < 4:
                mine, exact = mine.float(), exact.float()
            gap = (mine - exact).abs_().mul_(factor)
            over = gap > (exact.abs() + scale.to(exact.dtype)).mul_(tolerance.relative).add_(factor * tolerance.absolute)
        if bool(over.any()):
            over &= gap.isfinite()
            gap = gap.double()
            row, column = over.nonzero(as_tuple=True)
            places.append((row + some.start) * length + column + columns.start)
            gaps.append(gap[over])
    return (torch.cat(places), torch.cat(gaps)) if places else None


def _first(bad, begin: int, left: int, length: int, shape) -> tuple[int, ...]:
    flat = int(bad.reshape(-1).byte().argmax())
    flat, place = (begin + flat // bad.shape[1]) * length + left + flat % bad.shape[1], []
    for size in reversed(shape):
        place.append(flat % size)
        flat //= size
    return tuple(reversed(place))


def difference(got: list, case) -> str | None:
    """First difference between outputs and a Case's `expected` beyond its tolerance, in one line; None when all is right.

    NaN and infinities must stand exactly where the reference has them.
    """
    for number, (value, expected, tolerance) in enumerate(zip(got, case.expected, case.tolerance, strict=True)):
        if value.shape != expected.shape or value.dtype != expected.dtype:
            return f"output {number}: got {value.dtype} {tuple(value.shape)}, wanted {expected.dtype} {tuple(expected.shape)}"
        problem = wrong(value, expected, tolerance)
        if problem:
            return f"output {number}{problem}"
    return None


def wrong(value, expected, tolerance: Tolerance) -> str | None:
    """What is wrong with one tensor of the right shape and dtype, to be put after its name; None when it is right."""
    if not value.numel():
        return None
    return _close(value, expected, tolerance) if expected.is_floating_point() else _exact(value, expected, tolerance)


def effect(dtype) -> Tolerance:
    """Tolerance of what the reference leaves in an input or a buffer that it changes."""
    return Tolerance(relative=EFFECT * LOWEST.get(name_of(dtype), 0.0))


def inputs_left(left: list, case) -> tuple[int, str, str] | None:
    """Inputs after a call, `left`, against a Case: (number of the first wrong one, what is wrong with it, rule), None when all are right.

    They must be as they were, or as the reference leaves them where it changes them; where it returns what it changed, either will do.
    """
    for number, (now, before) in enumerate(zip(left, case.inputs, strict=True)):
        moved = changed(now, before)
        if case.after is not None and changed(case.after[number], before):
            after = case.after[number]
            problem = wrong(now, after, effect(before.dtype)) if moved or not _returned(after, case) else None
            if problem:
                return number, f", which the reference changes{problem}", "inputs_left"
        elif moved:
            return number, " was changed", "inputs_changed"
    return None


def _returned(after, case) -> bool:
    """Whether a changed input is, element for element, one of the reference's outputs: then its new values are in the answer already."""
    return any(
        after.numel() == out.numel() and after.dtype == out.dtype and wrong(after.reshape(out.shape), out, effect(out.dtype)) is None
        for out in case.expected
    )


def _pardoned(bad, gap, tolerance: Tolerance, some: slice, columns: slice, length: int):
    """`bad` without the elements whose gap is within their slack."""
    if tolerance.slack is None:
        return bad
    places, gaps = tolerance.slack
    row, column = places // length, places % length
    here = (row >= some.start) & (row < some.stop) & (column >= columns.start) & (column < columns.stop)
    row, column, gaps = row[here] - some.start, column[here] - columns.start, gaps[here]
    bad[row, column] &= False if gap is None else ~(gap[row, column].double() <= gaps)
    return bad


def _told(bad, value, expected, some: slice, columns: slice, length: int) -> str:
    place = _first(bad, some.start, columns.start, length, value.shape)
    share = float(bad.double().mean())
    return f" at {place}: got {value[place].item():.7g}, wanted {expected[place].item():.7g}; {share:.2%} of the elements differ"


def _exact(value, expected, tolerance: Tolerance) -> str | None:
    length = _row_length(expected.shape)
    for begin in range(0, expected.numel() // length, step := max(1, _piece(expected) // length)):
        some, columns = slice(begin, min(begin + step, expected.numel() // length)), slice(0, length)
        bad = _rows(value, expected)[some] != _rows(expected, expected)[some]
        if bool(bad.any()):
            bad = _pardoned(bad, None, tolerance, some, columns, length)
            if bool(bad.any()):
                return _told(bad, value, expected, some, columns, length)
    return None


def _close(value, expected, tolerance: Tolerance) -> str | None:
    import torch

    length, total, count = _row_length(expected.shape), 0.0, 0
    values, rows = _rows(value, expected), _rows(expected, expected)
    # Nothing can exceed the mean that did not exceed the bound of an element
    mean_matters = tolerance.bulk < tolerance.relative and expected.numel() >= BULK_LEAST
    for some, columns, scale in _pieces(expected, tolerance.far, tolerance.scale):
        mine, exact = values[some, columns], rows[some, columns]
        if exact.dtype in (torch.bfloat16, torch.float16):
            mine, exact = mine.float(), exact.float()
        gap = torch.sub(mine, exact).abs_()
        unit = exact.abs().mul_(tolerance.relative).add_(scale * tolerance.relative)
        if not float(torch.sub(gap, unit).max()) <= tolerance.absolute:  # NaN compares false
            finite = exact.isfinite()
            # Beside an infinity or NaN nothing but the same is right: infinity must not become its own tolerance
            bad = torch.where(finite, ~(gap <= unit + tolerance.absolute), ~((mine == exact) | (mine.isnan() & exact.isnan())))
            bad = _pardoned(bad, gap, tolerance, some, columns, length)
            if bool(bad.any()):
                return _told(bad, value, expected, some, columns, length)
        if mean_matters:
            ratio = gap.sub_(tolerance.absolute).clamp_min_(0.0).div_(unit.clamp_min_(torch.finfo(unit.dtype).tiny))
            # An element at its bound counts as that; exact zeros of the output say nothing of the precision
            total += float(ratio.nan_to_num_(0.0, 1.0, 1.0).clamp_max_(1.0).sum(dtype=torch.float64)) * tolerance.relative
            count += int(exact.count_nonzero())
    if mean_matters and count and total / count > tolerance.bulk:
        return f": its mean error is {total / count:.2g} of value and row scale, allowed {tolerance.bulk:.2g} (a lower precision inside?)"
    return None
