"""Rates are over all counted episodes, speed-ups over correct ones, intervals over tasks; what we lost counts for nothing."""

import math

import pytest

from data.records import Task, Trajectory, Turn, Verdict
from stages import score


def episode(task, sample, status="correct", low=1.1, median=1.2, stop="done", reward=1.0):
    verdict = None
    if status:
        correct = status == "correct"
        speedup = {"eager": (low, median, median + 0.1), "compile": (low / 2, median / 2, median)} if correct else None
        verdict = Verdict(
            status=status, task=task, candidate="c", backend="cpp", policy="libraries_allowed", speedup=speedup,
            times_ms={"candidate": 1.0} if correct else None, reason=None if correct else "no", rule="r" if status == "rejected" else None,
        )
    turns = (Turn(index=0, action_ids=(1, 2, 3)),)
    return Trajectory(task=task, checkpoint="k", stage="evaluate", round=0, sample=sample, turns=turns, stop=stop, verdict=verdict, reward=reward)


def test_rates_and_means_by_hand():
    episodes = [
        episode("a", 0, low=1.5, median=2.0),
        episode("a", 1, low=0.4, median=0.5),
        episode("b", 0, "incorrect"),
        episode("b", 1, status=None, reward=-1.0),
    ]
    found = score.figures(episodes)
    assert (found["episodes"], found["left_out"]) == (4, 0)
    assert found["pass_rate"] == 0.5 and found["faster_eager"] == 0.25 and found["faster_compile"] == 0.0 and found["solved"] == 0.5
    assert found["speedup_eager"] == pytest.approx(math.sqrt(2.0 * 0.5))
    assert found["pass_rate_low"] == 0.0 and found["pass_rate_high"] == 1.0
    assert found["turns"] == 1 and found["action_tokens"] == 3 and found["reward"] == 0.5


def test_what_was_lost_is_left_out_and_counted():
    whole = [episode("a", 0), episode("b", 0, "incorrect")]
    lost = [episode("c", 0, None, stop="infra_error", reward=None), episode("d", 0, "task_invalid", reward=None)]
    assert score.figures(whole + lost) == score.figures(whole) | {"left_out": 2}


def test_an_interval_narrows_with_tasks_not_with_samples_of_one_task():
    def width(tasks, samples):
        found = score.figures([episode(str(t), s, "correct" if t % 2 else "incorrect") for t in range(tasks) for s in range(samples)])
        return found["pass_rate_high"] - found["pass_rate_low"]

    assert width(8, 16) == pytest.approx(width(8, 1), abs=0.02)
    assert width(128, 1) < 0.35 * width(8, 1)


def test_nothing_counted_gives_no_rates():
    found = score.figures([episode("c", 0, None, stop="infra_error", reward=None)])
    assert "pass_rate" not in found and "no episode" in score.headline(found)


def test_results_have_a_row_an_episode_and_counts_by_status():
    task = Task(source="x", origin="user", operators=("relu",))
    body = score.results("sft", 1, None, [task], [episode(task.id, 0), episode(task.id, 1, "rejected"), episode(task.id, 2, None)])
    assert body["statuses"] == {"correct": 1, "rejected": 1, "no candidate": 1}
    assert [row["status"] for row in body["episodes"]] == ["correct", "rejected", None] and body["episodes"][0]["operators"] == ["relu"]
