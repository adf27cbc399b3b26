"""Rewards from hand-made verdicts, each value worked out on paper."""

import pytest

from data.records import Status, Verdict
from policy.reward import raw, robust


def verdict(status="correct", *, eager=None, compile=None, rule=None, policy="libraries_allowed"):
    correct = status == "correct"
    speedup = {k: v for k, v in (("eager", eager), ("compile", compile)) if v} or None
    return Verdict(
        status=status,
        reason=None if correct else "because",
        rule=rule or ("import" if status == "rejected" else None),
        task="t",
        candidate="c",
        backend="cpp",
        policy=policy,
        times_ms={"candidate": 1.0} if correct else None,
        speedup=speedup if correct else None,
    )


FAST, EDGE, WIDE = (1.06, 1.2, 1.3), (1.052, 1.2, 1.3), (1.04, 2.0, 9.0)


@pytest.mark.parametrize(
    "eager, compile, wanted",
    [
        (None, None, 1.0),
        (EDGE, FAST, 1.0),  # 1 / (1 - 0.05) = 1.0526: 5 % less time, not 1.05 times the speed
        (WIDE, FAST, 1.0),  # the median clears the bar, the low end does not
        (FAST, None, 2.0),
        (FAST, WIDE, 2.0),
        (FAST, FAST, 3.0),
    ],
)
def test_milestone_counts_at_the_low_end_of_its_interval(eager, compile, wanted):
    assert robust(verdict(eager=eager, compile=compile)) == wanted


@pytest.mark.parametrize("status", [s.value for s in Status if s.value not in ("correct", "task_invalid")])
def test_every_failure_of_the_candidate_is_minus_one_but_stress_alone(status):
    assert robust(verdict(status)) == -1.0 and raw(verdict(status)) == -1.0
    if status == "incorrect":
        assert robust(verdict(status, rule="stress")) == 0.0 and raw(verdict(status, rule="stress")) == 0.0


def test_invalid_task_has_no_reward():
    assert robust(verdict("task_invalid")) is None and raw(verdict("task_invalid")) is None


def test_raw_is_the_median_over_compile():
    assert raw(verdict(eager=(5, 6, 7), compile=(0.4, 0.5, 0.6))) == 0.5
    assert raw(verdict()) == 1.0


def test_mixed_is_never_rewarded():
    for status in ("correct", "incorrect"):
        with pytest.raises(ValueError, match="never rewarded"):
            robust(verdict(status, policy="mixed"))
