"""The options of reinforcement, each against numbers worked out by hand or a computation of its own."""

import collections

import pytest

from data.records import Task
from policy import curriculum
from tests.policy.toys import trajectory

TASKS = [Task(source=f"task {i}", origin="user") for i in range(6)]


def test_the_latest_rewards_of_a_task_replace_its_earlier_ones():
    history = curriculum.remember(
        {"a": [1.0, 2.0], "b": [3.0]}, [trajectory(i, turns=[(1, 0)], reward=r, task="a") for i, r in enumerate((None, 0.0, 2.0))]
    )
    assert history == {"a": [0.0, 2.0], "b": [3.0]}


def test_tasks_are_drawn_in_proportion_to_the_variance_of_their_rewards_with_a_floor():
    history = {TASKS[0].id: [0.0, 4.0], TASKS[1].id: [0.0, 2.0], TASKS[2].id: [3.0, 3.0], TASKS[3].id: [1.0]}
    weights = [4.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    first = collections.Counter(curriculum.draw(TASKS, 1, seed, history=history, floor=0.5)[0].id for seed in range(8000))
    for task, weight in zip(TASKS, weights, strict=True):
        assert first[task.id] / 8000 == pytest.approx(weight / sum(weights), abs=0.02)  # 0.02 = 3.6 standard errors of the commonest


def test_a_draw_depends_on_the_seed_and_not_on_the_order_and_draws_nothing_twice():
    draw = lambda tasks, seed, count=3: curriculum.draw(tasks, count, seed, history={TASKS[4].id: [0.0, 9.0]}, floor=0.1)
    assert draw(TASKS, 1) == draw(TASKS[::-1], 1) and len({t.id for t in draw(TASKS, 1)}) == 3
    assert len({tuple(t.id for t in draw(TASKS, seed)) for seed in range(20)}) > 5
    assert sorted(t.id for t in draw(TASKS, 1, 0)) == sorted(t.id for t in TASKS)
    assert draw(TASKS[:5], 1, 0) == [t for t in draw(TASKS, 1, 0) if t is not TASKS[5]]


def test_a_model_from_elsewhere_has_no_history(tmp_path):
    assert curriculum.load(tmp_path) == {}
    curriculum.save({"a": [1.0, -1.0]}, tmp_path)
    assert curriculum.load(tmp_path) == {"a": [1.0, -1.0]}
