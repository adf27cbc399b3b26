"""Is an output right? Tolerance from the reference's own rounding noise and the scale of the element's own row.

Works on torch tensors of any device; expected values and tolerances are made where no candidate can reach them.
"""

from __future__ import annotations

LOWEST = {"float32": 2e-5, "float64": 1e-10, "bfloat16": 2e-2, "float16": 3e-3}
"""Relative error that any honest order of operations is granted, by output dtype."""
HIGHEST = {"float32": 1e-3, "float64": 1e-6, "bfloat16": 1e-1, "float16": 2e-2}
"""Noise beyond a tenth of this makes a distribution unusable: an fp32 task must still tell fp16 inside from fp32."""
NOISE_FACTOR = 10.0


def name_of(dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def all_finite(value) -> bool:
    """No NaN and no infinity, in one pass over the memory."""
    import torch

    return not value.numel() or not value.is_floating_point() or bool(torch.stack(torch.aminmax(value)).isfinite().all())


def row_scale(expected):
    """Mean magnitude along the last dimension longer than one, kept for broadcasting: one far value loosens nothing elsewhere."""
    magnitude = expected.abs()
    if not all_finite(magnitude):
        magnitude = magnitude.nan_to_num(0.0, 0.0, 0.0)
    dims = [d for d, size in enumerate(expected.shape) if size > 1]
    return magnitude.mean(dim=dims[-1], keepdim=True) if dims else magnitude


def noise(low, high) -> float:
    """Largest error of the reference at its precision, `low`, against the fp64 oracle `high`, relative to value and row scale."""
    high = high.double()
    gap = (low.double() - high).abs()
    allowed = high.abs() + row_scale(high)
    ratio = gap / allowed.clamp_min(1e-300)
    ratio = ratio[ratio.isfinite() & (gap > 0)]
    return float(ratio.max()) if ratio.numel() else 0.0


def relative_tolerance(dtype, floor: float) -> float | None:
    """Tolerance for a noise floor; None when the noise is too high to judge anything."""
    name = name_of(dtype)
    if name not in LOWEST:
        return 0.0
    if NOISE_FACTOR * floor > HIGHEST[name]:
        return None
    return max(LOWEST[name], NOISE_FACTOR * floor)


def well_within(low, expected, relative: float) -> bool:
    """Whether the reference's own outputs `low` stay NOISE_FACTOR times closer to `expected` than `relative` allows; False when unsure."""
    if not low.numel():
        return True
    gap = (low - expected).abs_().mul_(NOISE_FACTOR)
    return bool(gap.sub_(tolerance(expected, relative)).max() <= 0)


def tolerance(expected, relative: float):
    """Elementwise: relative * (|expected| + scale of the row). Integers and booleans: exact."""
    if not expected.is_floating_point():
        return None
    magnitude = expected.abs()
    allowed = (magnitude + row_scale(expected)).mul_(relative)
    # Beside an infinity or NaN nothing but the same is right: infinity must not become its own tolerance.
    return allowed if all_finite(magnitude) else allowed.masked_fill_(~magnitude.isfinite(), -1.0)


def _first(bad, shape) -> tuple[int, ...]:
    flat, place = int(bad.reshape(-1).byte().argmax()), []
    for size in reversed(shape):
        place.append(flat % size)
        flat //= size
    return tuple(reversed(place))


def difference(got: list, case) -> str | None:
    """First difference between outputs and a Case's `expected` beyond its tolerance, in one line; None when all is right.

    NaN and infinities must stand exactly where the reference has them.
    """
    import torch

    for number, (value, expected, relative) in enumerate(zip(got, case.expected, case.relative, strict=True)):
        if value.shape != expected.shape or value.dtype != expected.dtype:
            return f"output {number}: got {value.dtype} {tuple(value.shape)}, wanted {expected.dtype} {tuple(expected.shape)}"
        if value.numel() == 0:
            continue
        allowed = tolerance(expected, relative)
        if allowed is None:
            bad = value != expected
            if not bool(bad.any()):
                continue
        else:
            if float(torch.sub(value, expected).abs_().sub_(allowed).max()) <= 0.0:
                continue  # NaN compares false and takes the long way
            bad = ~((value - expected).abs() <= allowed)
            bad &= ~((value == expected) | (value.isnan() & expected.isnan()))
            if not bool(bad.any()):
                continue
        place = _first(bad, value.shape)
        share = float(bad.double().mean())
        return f"output {number} at {place}: got {value[place].item():.7g}, wanted {expected[place].item():.7g}; {share:.2%} of the elements differ"
    return None
