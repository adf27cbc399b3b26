"""Which tasks a round plays: those whose samples ended differently when last played are the ones that an update can learn from.

A task whose samples all got the same reward gives every one of them the advantage zero. History: {task id: rewards of its latest play}.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from data.records import Task, Trajectory, content_id

FILE = "rewards.json"
"""Stands in the folder of the checkpoint that was trained last on these plays."""


def remember(history: dict[str, list[float]], trajectories: Iterable[Trajectory]) -> dict[str, list[float]]:
    """`history` with the rewards of `trajectories` (of one policy) in place of those tasks' earlier ones; episodes without a reward are left out."""
    latest: dict[str, list[float]] = {}
    for t in trajectories:
        if t.reward is not None:
            latest.setdefault(t.task, []).append(float(t.reward))
    return history | latest


def draw(tasks: Sequence[Task], count: int, seed: int, *, history: dict[str, list[float]], floor: float) -> list[Task]:
    """`count` of the tasks (0 = all) without replacement, each with weight max(variance of its latest rewards, floor), floor > 0.

    Tasks not in the history, or played once, weigh `floor` (squared reward units). A task's chance depends on (task, seed) and the weights alone, not on
    the order of `tasks`: the smallest of exponential times with these rates (Efraimidis and Spirakis, 2006).
    """
    weight = {task.id: max(float(np.var(history.get(task.id, [0.0]))), floor) for task in tasks}
    uniform = {task.id: (int(content_id(task.id, seed), 16) + 1) / 2**64 for task in tasks}
    chosen = sorted(tasks, key=lambda task: (-math.log(uniform[task.id]) / weight[task.id], task.id))
    return chosen[:count] if count else chosen


def save(history: dict[str, list[float]], folder) -> None:
    """Write it beside the weights in the checkpoint folder `folder`."""
    (pathlib.Path(folder) / FILE).write_text(json.dumps(history, sort_keys=True, indent=1) + "\n", encoding="utf-8")


def load(folder) -> dict[str, list[float]]:
    """The history of the checkpoint folder `folder`; empty for a model from elsewhere, which has none."""
    path = pathlib.Path(folder) / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
