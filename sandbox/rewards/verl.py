"""The judge as a custom reward function of verl (0.9.1).

    reward.custom_reward_function.path=pkg://sandbox.rewards.verl
    +reward.custom_reward_function.reward_kwargs.reward=policy.reward:robust
    +reward.custom_reward_function.reward_kwargs.service=http://judge:8080

A row's `reward_model.ground_truth` is the task: its source, or a Task as JSON.
"""

from __future__ import annotations

import functools
import pkgutil
from typing import Any

from data.records import SandboxError
from sandbox.rewards.source import as_candidate, as_task, source

_source = functools.cache(source)


async def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, *, reward: str, **options: str
) -> dict[str, float]:
    """The reward of one reply: {"score", "acc" (1.0 when correct), "faster" (1.0 when faster than torch.compile)}.

    reward: "module:function" of a verdict, for example policy.reward:robust. options: of sandbox.rewards.source.source (service,
    token_file, policy, ...); one source a process. Raises SandboxError where we failed and ValueError for a task that cannot be judged:
    verl knows no missing reward, and a made-up one would train the model on our faults.
    """
    options = {name: value for name, value in options.items() if not name.startswith("reward_")}  # verl's own: its router and tokenizer
    task, candidate = as_task(ground_truth), as_candidate(solution_str)
    (verdict,) = await _source(**options).judge_async([(task, candidate)])
    if isinstance(verdict, SandboxError):
        raise verdict
    score = pkgutil.resolve_name(reward)(verdict)
    if score is None:
        raise ValueError(f"task {task.id} of {data_source}: got {verdict.status.value} ({verdict.reason}), wanted tasks that can be judged")
    return {"score": float(score), "acc": float(verdict.correct), "faster": float(verdict.faster_than("compile"))}
