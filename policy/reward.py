"""Rewards: pure functions of the scored verdict (CUDA Agent, arXiv 2602.24286). None means: left out of loss and statistics."""

from __future__ import annotations

from data.records import Status, Verdict

MARGIN = 0.05
"""A milestone counts when (t0 - t) / t0 > MARGIN at the low end of the speed-up's interval."""


def robust(verdict: Verdict) -> float | None:
    """-1 wrong, 1 correct, 2 and faster than eager, 3 and faster than eager and torch.compile; 0 when only the stress inputs fail.

    None for `task_invalid`: a fact about the task. Raises ValueError for the policy `mixed`, which is never rewarded.
    """
    if (early := _without_speed(verdict)) is not False:
        return early
    if not verdict.faster_than("eager", MARGIN):
        return 1.0
    return 3.0 if verdict.faster_than("compile", MARGIN) else 2.0


def raw(verdict: Verdict) -> float | None:
    """The ablation: the median speed-up over torch.compile when correct, 1 where no clock can tell; otherwise as `robust`."""
    if (early := _without_speed(verdict)) is not False:
        return early
    interval = (verdict.speedup or {}).get("compile")
    return float(interval[1]) if interval else 1.0


def _without_speed(verdict: Verdict) -> float | bool | None:
    """The reward where speed does not matter, False where it does."""
    if verdict.policy == "mixed":
        raise ValueError("policy: got mixed, wanted own_kernels_only or libraries_allowed: mixed is never rewarded")
    if verdict.status is Status.TASK_INVALID:
        return None
    if verdict.correct:
        return False
    return 0.0 if verdict.status is Status.INCORRECT and verdict.rule == "stress" else -1.0
