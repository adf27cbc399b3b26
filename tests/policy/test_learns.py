"""A two-turn toy: say anything, the tool answers with a symbol, say that symbol. Learned by PPO, and only when nothing is broken."""

import numpy as np
import pytest
import torch

from data.records import Trajectory, Turn
from policy import advantage, batch, decode, model, train
from tests.policy.conftest import make

SYMBOLS = list(range(40, 46))
ROUNDS = 14


@pytest.fixture(scope="module")
def start(tokenizer, tmp_path_factory):
    """A policy that says one of the symbols, whatever was said before: chance is 1 in 6."""
    folder = tmp_path_factory.mktemp("toy")
    raw = make(tokenizer, folder / "raw", seed=4)
    rng = np.random.default_rng(0)
    said = [episode(i, [int(x) for x in rng.choice(SYMBOLS, 3)], None) for i in range(96)]
    train.fit(said, train.Settings(method="sft", seed=0, epochs=6, batch=16, lr=3e-3), policy=raw, out=folder / "start", device="cpu")
    return folder / "start"


def episode(sample, symbols, logprobs):
    """symbols: first action, what the tool asks for, second action."""
    first, asked, second = symbols
    logprobs = logprobs or [None, None]
    turns = (
        Turn(index=0, prompt_ids=(5, 6, 7), action_ids=(first,), action_logprobs=logprobs[0], observation_ids=(8, 9, asked)),
        Turn(index=1, action_ids=(second,), action_logprobs=logprobs[1]),
    )
    reward = 1.0 if second == asked else 0.0
    return Trajectory(task="toy", checkpoint="c", stage="toy", round=0, sample=sample, turns=turns, stop="done", reward=reward)


def play(path, count, seed):
    lm, _, _ = model.load(path)
    rng = np.random.default_rng(seed)
    decoder = decode.Decoder(lm, stop_ids=(), slots=count)

    def turn(prompts, offset):
        rows = [decoder.submit(ids, max_new_tokens=1, seed=seed * 10_000 + offset + i) for i, ids in enumerate(prompts)]
        while decoder.waiting or decoder.active:
            decoder.step()
        return rows

    first = turn([(5, 6, 7)] * count, 0)
    asked = [int(x) for x in rng.choice(SYMBOLS, count)]
    second = turn([(*row.ids, 8, 9, symbol) for row, symbol in zip(first, asked, strict=True)], 5_000)
    return [
        episode(seed * 1000 + i, [a.sampled[0], symbol, b.sampled[0]], [tuple(a.logprobs), tuple(b.logprobs)])
        for i, (a, symbol, b) in enumerate(zip(first, asked, second, strict=True))
    ]


def learn(start, folder):
    """Mean reward before each round and after the last."""
    policy, critic, means = start, None, []
    for number in range(ROUNDS):
        played = play(policy, 96, number + 1)
        means.append(np.mean([t.reward for t in played]))
        settings = train.Settings(method="ppo", seed=number, epochs=2, batch=48, lr=4e-3, critic_lr=4e-3, lam=1.0, lam_critic=1.0)
        train.fit(played, settings, policy=policy, critic=critic, out=folder / f"p{number}", critic_out=folder / f"c{number}", device="cpu")
        policy, critic = folder / f"p{number}", folder / f"c{number}"
    return [*means, np.mean([t.reward for t in play(policy, 96, 99)])]


def test_the_toy_is_learned(start, tmp_path, record_property):
    means = learn(start, tmp_path)
    record_property("reward", [float(means[0]), float(means[-1])])
    assert means[0] < 0.4 and means[-1] >= 0.9, means


def test_the_toy_is_not_learned_with_the_reward_on_the_first_action(start, tmp_path, monkeypatch, record_property):
    def misplaced(actions, outcome, penalty=None):
        out = np.zeros(actions)
        out[0] = outcome
        return out

    monkeypatch.setattr(advantage, "rewards", misplaced)
    last = learn(start, tmp_path)[-1]
    record_property("reward", last)
    assert last < 0.6


def test_the_toy_is_not_learned_with_observations_taken_for_actions(start, tmp_path, monkeypatch, record_property):
    right = batch.row

    def wrong(trajectory):
        r = right(trajectory)
        r.src = r.src - 1  # the label of the last action becomes the tool's symbol
        return r

    monkeypatch.setattr(batch, "row", wrong)
    last = learn(start, tmp_path)[-1]
    record_property("reward", last)
    assert last < 0.6
    torch.manual_seed(0)
