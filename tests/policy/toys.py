"""Trajectories made by hand for the training tests."""

import numpy as np

from data.records import Trajectory, Turn


def trajectory(sample, *, turns, reward=1.0, task="t", stop="done", logprobs=True, trainable=None, seed=None, prompt=5):
    """turns: [(action length, observation length)]; ids drawn from [3, 290)."""
    rng = np.random.default_rng(sample if seed is None else seed)
    draw = lambda n: tuple(int(i) for i in rng.integers(3, 290, n))
    made = []
    for i, (actions, observed) in enumerate(turns):
        ids = draw(actions)
        made.append(
            Turn(
                index=i,
                prompt_ids=draw(prompt) if i == 0 else (),
                action_ids=ids,
                action_logprobs=tuple(-0.1 * (1 + j % 7) for j in range(actions)) if logprobs else None,
                observation_ids=draw(observed),
                trainable=True if trainable is None else trainable[i],
            )
        )
    return Trajectory(task=task, checkpoint="c", stage="test", round=0, sample=sample, turns=tuple(made), stop=stop, reward=reward)


def several(count, **options):
    rng = np.random.default_rng(7)
    return [
        trajectory(
            i, turns=[(int(rng.integers(2, 9)), int(rng.integers(0, 6))) for _ in range(1 + i % 3)], reward=float(i % 4 - 1), **options
        )
        for i in range(count)
    ]
