"""The tokens that are trained on are those that were sampled, with the log-probabilities that the trainer computes, before and after an update."""

import asyncio
import dataclasses

import numpy as np
import pytest
import torch

from data.records import Trajectory, Turn
from policy import batch, model, train
from policy.sampler import Completion, HfSampler
from tests.policy.conftest import make
from tests.policy.test_episode import Workspace, episode, ids_player
from tests.policy.test_sampler import Segment, ids_of
from tests.policy.test_train import PPO, run

COUNT = 6


def play(sampler, *, seed, turns=3):
    """Episodes whose later turns begin with all that came before; two of each task, so their openings are shared too."""

    async def one(i):
        ids, made = ids_of(i // 2, 11), []
        prompt = ids
        for k in range(turns):
            done = await sampler.generate([Segment("user", "", ids)], max_new_tokens=5 + i, seed=1000 * seed + 10 * i + k)
            observed = ids_of(50 + i + k, 4 + k) if k + 1 < turns else ()
            made.append(
                Turn(
                    index=k,
                    prompt_ids=prompt if k == 0 else (),
                    action_ids=done.ids,
                    action_logprobs=done.logprobs,
                    observation_ids=observed,
                    policy_version=done.policy_version,
                )
            )
            ids = (*ids, *done.ids, *observed)
        where = {"task": f"t{i // 2}", "checkpoint": sampler.checkpoint.id, "stage": "s", "round": seed, "sample": i}
        return Trajectory(**where, turns=tuple(made), stop="done", reward=float(i % 3))

    async def main():
        return await asyncio.gather(*[one(i) for i in range(COUNT)])

    return asyncio.run(main())


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_trainer_finds_the_samplers_logprobs_before_and_after_an_update(small, tmp_path, record_property, temperature):
    settings = {"temperature": temperature, "batch": COUNT, "lr": 1e-2}
    sampler = HfSampler(small, temperature=temperature)
    played = play(sampler, seed=1)
    assert sampler.decoder.counts["reused"] > 0
    first = run(small, tmp_path, played, settings=settings)[2][0]
    assert first["train_rollout_logprob_abs_diff_max"] <= 1e-5 and first["ratio_min"] == first["ratio_max"] == 1.0
    sampler.reload(tmp_path / "p")  # the prompts of the next round are the same, their cached keys and values are not
    again = play(sampler, seed=2)
    second = run(tmp_path / "p", tmp_path / "next", again, settings=settings)[2][0]
    assert second["train_rollout_logprob_abs_diff_max"] <= 1e-5
    record_property("before", first["train_rollout_logprob_abs_diff_max"])
    record_property("after", second["train_rollout_logprob_abs_diff_max"])
    assert {t.policy_version for e in played for t in e.turns}.isdisjoint({t.policy_version for e in again for t in e.turns})
    wrong = run(tmp_path / "p", tmp_path / "wrong", again, settings=settings | {"temperature": temperature + 0.1})[2][0]
    assert wrong["train_rollout_logprob_abs_diff_mean"] > 1e-3  # the measure sees a temperature that is not the sampler's
    sampler.close()


def test_keys_and_values_of_older_weights_show_in_the_trainers_measure(small, tokenizer, tmp_path):
    other = make(tokenizer, tmp_path / "other", seed=5)
    stale = HfSampler(small)
    play(stale, seed=1)
    stale.model.load_state_dict(model.load(other)[0].state_dict())  # the mistake: weights changed, store kept
    log = run(other, tmp_path, play(stale, seed=2), settings={"batch": COUNT})[2][0]
    assert log["train_rollout_logprob_abs_diff_max"] > 0.01
    stale.close()


def test_weights_do_not_change_under_a_request(small, tokenizer, tmp_path):
    sampler = HfSampler(small)
    before = sampler.checkpoint.id
    sampler.decoder.submit(ids_of(1, 5), max_new_tokens=3, seed=0)
    with pytest.raises(ValueError, match="1 requests under way"):
        sampler.reload(make(tokenizer, tmp_path / "other", seed=5))
    fresh = model.load(small)[0].state_dict()
    assert sampler.checkpoint.id == before and all(torch.equal(v, fresh[k]) for k, v in sampler.model.state_dict().items())
    while sampler.decoder.waiting or sampler.decoder.active:
        sampler.decoder.step()
    sampler.close()


def test_episodes_of_another_policy_are_counted(small, tokenizer, tmp_path):
    for index, (player, stale) in enumerate(((make(tokenizer, tmp_path / "other", seed=5), COUNT), (small, 0))):
        sampler = HfSampler(player)
        played = play(sampler, seed=1)
        sampler.close()
        assert run(small, tmp_path / str(index), played, settings={"batch": COUNT})[2][0]["episodes_stale"] == stale


def test_updates_run_in_training_mode_and_scoring_without_gradients(small, tmp_path, monkeypatch):
    seen = []
    for kind in (model.Actor, model.Critic):
        forward = kind.forward

        def watched(self, *args, forward=forward, **options):
            seen.append((self.training, torch.is_grad_enabled()))
            return forward(self, *args, **options)

        monkeypatch.setattr(kind, "forward", watched)
    run(small, tmp_path, settings={"epochs": 2})
    assert set(seen) == {(True, True), (False, False)}


# -------------------------------------------------------------------------------------------- tokens in, tokens out


def test_every_request_of_150_turns_extends_the_one_before(tokenizer):
    generate = ids_player(tokenizer, end=lambda turn: turn % 3 > 0, length=9)
    got = episode(generate, Workspace(final="incorrect"), tokenizer=tokenizer, max_turns=150, context=10**6)
    assert len(got.turns) == 150
    drifted = [list(t.action_ids) for t in got.turns if tokenizer.encode(t.text, add_special_tokens=False) != list(t.action_ids)]
    assert len(drifted) > 75  # text would not bring the ids back
    for before, after, turn in zip(generate.requests, generate.requests[1:], got.turns, strict=False):
        assert after == [*before, *turn.action_ids, *turn.observation_ids]
    r = batch.row(got)
    assert r.label.tolist() == [i for t in got.turns for i in t.action_ids]
    assert r.ids.tolist() == [*generate.requests[-1], *got.turns[-1].action_ids]


def test_split_and_merged_spellings_of_one_text_stay_as_sampled(tokenizer):
    merged = [next(i for i in range(len(tokenizer)) if len(tokenizer.decode([i])) == 2)]
    apart = [i for letter in tokenizer.decode(merged) for i in tokenizer.encode(letter, add_special_tokens=False)]
    assert len(apart) == 2 and tokenizer.decode(apart) == tokenizer.decode(merged)
    sampled = [(*apart, tokenizer.eos_token_id), (*merged, tokenizer.eos_token_id), (*apart, *merged)]
    turn = iter(sampled)

    async def generate(segments, *, max_new_tokens, seed):
        ids = next(turn)
        stop = "stop" if ids[-1] == tokenizer.eos_token_id else "length"
        return Completion(ids=ids, logprobs=(-1.0,) * len(ids), text=tokenizer.decode(ids), finish_reason=stop, policy_version="v")

    got = episode(generate, Workspace(final="incorrect"), tokenizer=tokenizer)
    r = batch.row(got)
    assert [t.action_ids for t in got.turns] == sampled and r.label.tolist() == [i for ids in sampled for i in ids]
    newline = tokenizer.encode("\n", add_special_tokens=False)
    assert got.turns[0].observation_ids[: len(newline)] == tuple(newline)  # the template's own, in the context, not an action


def test_an_episode_is_one_row_and_no_token_is_learned_twice(tokenizer):
    got = episode(ids_player(tokenizer, end=lambda turn: True), Workspace(final="incorrect"), tokenizer=tokenizer, max_turns=6)
    (r,) = batch.rows([got], rewarded=True, sampled=True)
    assert len(set(r.src.tolist())) == r.actions == sum(len(t.action_ids) for t in got.turns)


def test_players_without_ids_or_logprobs_are_refused_by_reinforcement(small, tmp_path):
    sampler = HfSampler(small)
    good = play(sampler, seed=1)
    sampler.close()
    blind = dataclasses.replace(good[0], turns=tuple(dataclasses.replace(t, action_logprobs=None) for t in good[0].turns))
    with pytest.raises(ValueError, match="without log-probabilities"):
        run(small, tmp_path, [*good[1:], blind])
    assert not (tmp_path / "p").exists()
    train.fit([blind], train.Settings(**PPO | {"method": "rft"}), policy=small, out=tmp_path / "rft", device="cpu")
    assert np.isfinite(model.load(tmp_path / "rft")[0].lm_head.weight.detach().numpy()).all()
