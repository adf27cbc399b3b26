"""The judge as a reward function of TRL (1.16): GRPOTrainer(reward_funcs=reward_function(source, reward), ...).

The data set has a column with the task beside `prompt`: its source, or a Task as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from data.records import Candidate, SandboxError, Verdict
from sandbox.rewards.source import Local, Service, as_candidate, as_task


def reward_function(
    source: Service | Local,
    reward: Callable[[Verdict], float | None],
    *,
    column: str = "task",
    candidate: Callable[[Any], Candidate] = as_candidate,
) -> Callable[..., list[float | None]]:
    """A reward function for TRL's trainers: completions [N] and the data set's columns in, N rewards out.

    reward: what a verdict is worth, for example policy.reward.robust. candidate: reads a completion (text or messages).
    None, which TRL leaves out of the group's baseline and of the loss, stands where we failed and where `reward` says so
    (a task that cannot be judged). The function raises ValueError for a column that is no task and for requests that a service refuses.
    """

    def judge(completions: list[Any], **columns: Any) -> list[float | None]:
        if column not in columns:
            raise ValueError(f"data set: got columns {', '.join(sorted(columns))}, wanted {column!r} with the task's source")
        pairs = [(as_task(task), candidate(completion)) for task, completion in zip(columns[column], completions, strict=True)]
        return [None if isinstance(found, SandboxError) else reward(found) for found in source.judge(pairs)]

    return judge
