import dataclasses
import pathlib

import numpy as np
import pytest
import torch

from policy import batch, loss, model, train
from tests.policy.toys import several, trajectory

PPO = {"method": "ppo", "seed": 1, "epochs": 1, "batch": 6, "lr": 1e-3, "critic_lr": 1e-2, "tokens": 4096}


def run(start, out, data=None, *, settings=None, **options):
    """(policy weights, critic weights, log) after a fit."""
    log = []
    fitted = train.fit(
        several(12) if data is None else data,
        train.Settings(**(PPO | (settings or {}))),
        **({"policy": start, "out": out / "p", "critic_out": out / "c", "log": log.append, "device": "cpu"} | options),
    )
    return weights(fitted.policy), weights(fitted.critic), log


def weights(checkpoint):
    from safetensors.torch import load_file

    if checkpoint is None:
        return {}
    return {f"{f.name} {k}": v for f in sorted(pathlib.Path(checkpoint.path).glob("*.safetensors")) for k, v in load_file(f).items()}


def distance(a, b):
    assert a.keys() == b.keys() and a
    return max((a[k] - b[k]).abs().max().item() for k in a)


NEAR = 1e-4
"""A tenth of the learning rate: where a gradient is nearly zero, Adam turns its rounding into a part of a step."""


def same_norms(a, b):
    """The gradient's norm shows a wrong scale, which Adam hides in the weights."""
    names = [name for name in ("actor_grad_norm", "critic_grad_norm") if name in a[0]]
    return len(a) == len(b) and all(x[name] == pytest.approx(y[name], rel=1e-3) for x, y in zip(a, b, strict=True) for name in names)


def test_first_update_has_ratio_one_and_later_ones_do_not(small, tmp_path):
    _, _, log = run(small, tmp_path, settings={"batch": 12, "epochs": 3})
    first, *later = log
    assert first["ratio_min"] == first["ratio_max"] == 1.0 and first["pg_clipfrac_low"] == first["pg_clipfrac_high"] == 0
    assert abs(first["ppo_kl"]) < 1e-7 and first["ess"] == 1.0
    assert all(m["ratio_max"] > 1.0 for m in later)
    assert {"value_loss", "explained_var", "explained_var_mc", "entropy", "actor_grad_norm", "critic_grad_norm", "advantage_mean", "tokens_per_second",
            "train_rollout_logprob_abs_diff_mean", "kl_sample_train_v1", "reward_mean", "stop_done"} <= first.keys()  # fmt: skip


def test_first_gradient_is_that_of_reinforce(small):
    lm, _, _ = model.load(small)
    actor, rows = model.Actor(lm), batch.rows(several(4), rewarded=True, sampled=True)
    b = batch.collate(rows)
    adv = torch.linspace(-1, 2, len(b.src))
    logp = actor(b.ids, b.positions, b.src, b.label, b.spans)
    ppo = torch.autograd.grad(loss.policy(logp, logp.detach(), adv).sum(), list(lm.parameters()), retain_graph=True)
    plain = torch.autograd.grad(-(logp * adv).sum(), list(lm.parameters()))
    assert max((x - y).abs().max().item() for x, y in zip(ppo, plain, strict=True)) <= 1e-6 * max(y.abs().max().item() for y in plain)


def test_a_steps_gradient_is_that_of_the_mean_over_its_action_tokens(small, tmp_path):
    _, _, log = run(small, tmp_path, settings={"method": "sft", "batch": 12, "tokens": 30})
    lm, _, _ = model.load(small)
    b = batch.collate(batch.rows(several(12), rewarded=False, sampled=False))
    mean = -model.Actor(lm)(b.ids, b.positions, b.src, b.label, b.spans).mean()
    gradients = torch.autograd.grad(mean, list(lm.parameters()))
    assert log[0]["loss"] == pytest.approx(mean.item(), rel=1e-5)
    assert log[0]["actor_grad_norm"] == pytest.approx(sum(g.square().sum().item() for g in gradients) ** 0.5, rel=1e-4)


def test_learning_rate_zero_changes_nothing(small, tmp_path):
    _, _, log = run(small, tmp_path, settings={"lr": 0.0, "critic_lr": 0.0, "epochs": 2})
    assert distance(weights(model.read_record(tmp_path / "p")), weights(model.read_record(small))) == 0
    assert all(abs(m["ratio_max"] - 1) < 1e-6 and abs(m["ratio_min"] - 1) < 1e-6 for m in log)


def test_actor_and_critic_have_their_own_rates_and_do_not_touch_each_other(small, tmp_path):
    actor, critic, log = run(small, tmp_path, settings={"lr": 0.0})
    assert distance(actor, weights(model.read_record(small))) == 0 and critic["value_head.safetensors weight"].abs().max() > 0
    actor, critic, log = run(small, tmp_path, settings={"critic_lr": 0.0})
    assert distance(actor, weights(model.read_record(small))) > 0 and critic["value_head.safetensors weight"].abs().max() == 0
    assert log[0]["actor_lr"] == 1e-3 and log[0]["critic_lr"] == 0.0


def test_advantage_moves_its_tokens_probability_the_right_way(small, tmp_path):
    data = [trajectory(1, turns=[(4, 0)], reward=2.0), trajectory(2, turns=[(4, 0)], reward=-2.0)]
    run(small, tmp_path, data, settings={"lr": 1e-4, "whiten": False})
    before, after = (model.Actor(model.load(p)[0]) for p in (small, tmp_path / "p"))
    for t, sign in zip(data, (1, -1), strict=True):
        b = batch.collate([batch.row(t)])
        change = (after(b.ids, b.positions, b.src, b.label, b.spans) - before(b.ids, b.positions, b.src, b.label, b.spans)).sum().item()
        assert change * sign > 0


@pytest.mark.parametrize("method", ["ppo", "rft"])
def test_micro_batches_and_zero_stages_give_the_same_weights(small, tmp_path, method):
    base = run(small, tmp_path, settings={"method": method, "epochs": 2})
    cases = [{"tokens": 1}, {"tokens": 40}, {"zero_stage": 0}, {"zero_stage": 2}, {"zero_stage": 3}]
    for case in cases if method == "ppo" else cases[:2]:
        other = run(small, tmp_path, settings={"method": method, "epochs": 2} | case)
        for a, b in zip(base[:2], other[:2], strict=True):
            assert not a or distance(a, b) <= NEAR, case
        if case.get("zero_stage") != 0:
            assert same_norms(base[2], other[2]), case


def test_rejected_tokens_leave_the_others_share_alone(small):
    lm, _, _ = model.load(small)
    actor, rows = model.Actor(lm), batch.rows(several(4), rewarded=True, sampled=True)
    for r in rows:
        r.old_logp, r.adv = r.rollout_logp + np.float32(0.01 * (r.id == rows[0].id)), np.ones(r.actions)
    settings = train.Settings(**PPO | {"mrs_band": (0.999, 1.001)})
    per_token, seen = train._actor_loss(actor, batch.collate(rows), rows, settings)
    kept = seen["kept"].bool()
    assert (~kept).sum() == rows[0].actions and per_token[~kept].abs().max() == 0 and per_token[kept].abs().min() > 0
    all_gone, seen = train._actor_loss(actor, batch.collate(rows[:1]), rows[:1], settings)
    assert all_gone.sum() == 0 and seen["kept"].sum() == 0


def test_clipping_is_the_configured_one_and_adams_first_step_is_the_rate(small, tmp_path):
    free, _, log = run(small, tmp_path, settings={"method": "sft", "batch": 12, "grad_clip": 1e9})
    assert log[0]["actor_grad_norm"] > 0.5
    start = weights(model.read_record(small))
    moved = torch.cat([(free[k] - start[k]).abs().flatten() for k in start])
    assert moved.max() <= 1.001e-3 and moved[moved > 0].quantile(0.5) > 0.9e-3
    clipped, _, _ = run(small, tmp_path, settings={"method": "sft", "batch": 12, "grad_clip": 1e-12})
    assert torch.cat([(clipped[k] - start[k]).abs().flatten() for k in start]).max() < 5e-4  # eps 1e-8 outweighs a clipped gradient


def test_broken_numbers_stop_the_fit_and_nothing_is_written(small, tokenizer, tmp_path):
    lm, _, _ = model.load(small)
    with torch.no_grad():
        lm.model.norm.weight[0] = float("nan")
    model.save(lm, tokenizer, tmp_path / "broken", parent=None, kind="base")
    with pytest.raises(FloatingPointError, match="finite"):
        run(tmp_path / "broken", tmp_path, settings={"method": "sft"})
    assert not (tmp_path / "p").exists()


def test_a_large_kl_ends_the_epoch(small, tmp_path):
    settings = {"batch": 3, "epochs": 3, "lr": 1e-2}
    assert len(run(small, tmp_path, settings=settings)[2]) == 12
    stopped = run(small, tmp_path, settings=settings | {"kl_stop": 1e-4})[2]
    assert len(stopped) < 12 and stopped[-1]["epoch"] > 2


def test_kl_to_the_reference_holds_the_policy_back(small, tmp_path):
    far = run(small, tmp_path, settings={"epochs": 6})[2]
    near = run(small, tmp_path, settings={"epochs": 6, "kl": "k3", "kl_coef": 10.0})[2]
    assert near[0]["kl_reference"] == 0 and near[-1]["approx_kl_k3"] < 0.5 * far[-1]["approx_kl_k3"]


def test_trloo_needs_no_critic_and_refuses_players_without_logprobs(small, tmp_path):
    _, critic, log = run(small, tmp_path, several(12, task="same"), settings={"method": "trloo"})
    assert critic == {} and "value_loss" not in log[0] and log[0]["advantage_std"] > 0
    with pytest.raises(ValueError, match="without log-probabilities"):
        run(small, tmp_path, several(4, logprobs=False), settings={"method": "trloo"})
    with pytest.raises(ValueError, match="none to train on"):
        run(small, tmp_path, [dataclasses.replace(t, reward=None) for t in several(4)])


def test_bf16_engines_train_with_an_fp32_head_and_loss(small, tmp_path):
    _, critic, log = run(small, tmp_path, settings={"dtype": "bfloat16", "epochs": 2})
    assert abs(log[0]["ratio_max"] - 1) < 1e-3 and all(np.isfinite(m["value_loss"]) for m in log)
    assert critic["value_head.safetensors weight"].abs().max() > 0
    assert model.Critic.load(tmp_path / "c").head.weight.dtype == torch.float32


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"method": "dpo"}, {"critic_lr": None}, {"lam": 1.5}, {"unit": "word"}, {"epochs": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: got"):
            train.Settings(**PPO | wrong)


def test_value_pretraining_explains_a_known_return(tokenizer, tmp_path):
    from tests.policy.conftest import make

    start = make(tokenizer, tmp_path / "m", seed=0)
    rng = np.random.default_rng(0)
    data = []
    for i in range(64):  # the prompt's last token says the reward: V is known at every action token
        t = trajectory(i, turns=[(4, 2), (3, 0)], reward=float(i % 2))
        first = dataclasses.replace(t.turns[0], prompt_ids=(5, 6, 7, 20 + i % 2))
        data.append(dataclasses.replace(t, turns=(first, t.turns[1])))
    rng.shuffle(data)
    log = []
    fitted = train.fit(data, train.Settings(method="value", seed=0, epochs=12, batch=16, lr=3e-3, lam_critic=1.0, unit="turn"), policy=start,
                       critic_out=tmp_path / "c", log=log.append, device="cpu")  # fmt: skip
    assert log[0]["value_loss"] == pytest.approx(0.5 * log[0]["returns_mean"], abs=1e-6)  # V = 0 and R in {0, 1}
    assert log[-1]["explained_var_mc"] > 0.95 and fitted.policy is None and fitted.critic.kind == "critic"
    critic = model.Critic.load(tmp_path / "c")
    for reward in (0, 1):
        b = batch.collate([batch.row(next(t for t in data if t.reward == reward))])
        assert (critic(b.ids, b.positions, b.src, b.spans) - reward).abs().max() < 0.3


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "settings", [{}, {"method": "value", "lr": 1e-2, "lam_critic": 0.9}, {"method": "sft", "decay": True, "warmup": 2}]
)
def test_resume_is_exact_after_a_kill_and_after_a_stop(small, tmp_path, settings):
    settings = {"epochs": 2, "batch": 5, "save_after": 0.0} | settings
    whole = run(small, tmp_path / "whole", settings=settings, work=tmp_path / "w0")

    def killer(metrics):
        if metrics["step"] == 4:
            raise Killed  # after step 4 was computed, before it was saved

    with pytest.raises(Killed):
        run(small, tmp_path / "r", settings=settings, work=tmp_path / "w", log=killer)
    assert [p.name for p in (tmp_path / "w").glob("step-*")] == ["step-00000003"]
    (tmp_path / "w" / "step-00000004.partial").mkdir()
    stopped = train.fit(several(12), train.Settings(**(PPO | settings)), policy=small, work=tmp_path / "w", stop=lambda: True, device="cpu")
    assert stopped.stopped and stopped.steps == 4 and stopped.policy is None
    a, c, log = run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")
    assert [m["step"] for m in log] == [5, 6]
    for mine, wanted in ((a, whole[0]), (c, whole[1])):
        assert mine.keys() == wanted.keys() and all(torch.equal(mine[k], wanted[k]) for k in wanted)
    again = run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")
    assert again[2] == [] and all(torch.equal(again[0][k], a[k]) for k in a)
    with pytest.raises(ValueError, match="another fit"):
        run(small, tmp_path / "r", settings=settings | {"seed": 2}, work=tmp_path / "w")


@pytest.mark.parametrize("settings", [{}, {"method": "sft", "decay": True}])
def test_short_steps_are_saved_together_and_a_kill_still_changes_nothing(small, tmp_path, settings):
    settings = {"epochs": 2, "batch": 5, "save_after": 60.0} | settings
    whole = run(small, tmp_path / "whole", settings=settings)

    def killer(metrics):
        if metrics["step"] == 4:
            raise Killed

    with pytest.raises(Killed):
        run(small, tmp_path / "r", settings=settings, work=tmp_path / "w", log=killer)
    assert not list((tmp_path / "w").glob("step-*"))
    a, _, log = run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")
    assert [m["step"] for m in log] == [1, 2, 3, 4, 5, 6] and all(torch.equal(a[k], whole[0][k]) for k in a)
