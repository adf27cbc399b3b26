"""Degenerate and broken numbers: no spread, one token, no token, not finite, killed in the middle. None of them moves a weight or is kept."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from policy import advantage, engine, loss, model, train
from tests.policy.test_exact import prepared
from tests.policy.test_train import PPO, Killed, distance, run, weights
from tests.policy.toys import several, trajectory


def unmoved(small, out):
    return distance(weights(model.read_record(out)), weights(model.read_record(small))) == 0


# -------------------------------------------------------------------------------------------- no spread


@pytest.mark.parametrize(
    "settings",
    [{}, {"unit": "token"}, {"method": "trloo"}, {"kl": "k3", "kl_coef": 0.1}],
    ids=["turn", "token", "trloo", "kl"],
)
def test_equal_rewards_leave_the_policy_bit_for_bit(small, tmp_path, settings):
    data = [dataclasses.replace(t, reward=-1.0) for t in several(8, task="t")]
    _, _, log = run(small, tmp_path, data, settings={"batch": 8, "epochs": 2, "lam": 1.0} | settings)
    assert log[0]["advantage_std"] == 0 and log[0]["reward_std"] == 0  # how the log tells such a batch
    assert all(m["pg_loss"] == 0 and m["actor_grad_norm"] == 0 and m["entropy"] > 0 for m in log)
    assert unmoved(small, tmp_path / "p")


def test_equal_rewards_that_the_critic_foresees_give_advantages_of_exactly_zero(monkeypatch):
    data = [dataclasses.replace(t, reward=-1.0) for t in several(8)]
    rows = prepared(monkeypatch, data, value=lambda r: np.full(r.actions, -1.0), whiten=True, lam=0.95)
    assert all((r.adv == 0).all() for r in rows.values())


def test_a_difference_of_rounding_between_rewards_is_not_blown_up():
    adv = np.full(8, -1.0)
    adv[3] += 1e-7
    assert np.abs(advantage.whiten(adv)).max() < 1e-3


def test_rounding_in_the_critics_float32_values_is_not_blown_up(monkeypatch):
    data = [dataclasses.replace(t, reward=-1.0) for t in several(8)]
    noisy = lambda r: np.nextafter(np.float32(-1.0), np.where(r.label % 2, 0, -2).astype(np.float32))
    rows = prepared(monkeypatch, data, value=noisy, whiten=True, lam=0.95)
    assert max(np.abs(r.adv).max() for r in rows.values()) < 1e-3


def test_small_but_real_differences_are_still_whitened():
    adv = np.random.default_rng(0).normal(0, 1e-4, 100) - 1
    assert np.isclose(advantage.whiten(adv).std(), 1)


# -------------------------------------------------------------------------------------------- hardly any tokens


@pytest.mark.parametrize("method", ["ppo", "trloo"])
def test_one_action_token_in_all_is_finite(small, tmp_path, method):
    _, _, log = run(small, tmp_path, [trajectory(1, turns=[(1, 0)])], settings={"method": method, "batch": 8})
    assert log[0]["action_tokens"] == 1 and all(math.isfinite(v) for v in log[0].values())
    # whitened: one advantage alone is 0; a group of one in trloo has no baseline, its advantage is its return
    assert unmoved(small, tmp_path / "p") == (method == "ppo")


def test_an_episode_without_a_response_contributes_nothing(small, tmp_path):
    silent = [trajectory(100, turns=[(0, 0)], reward=5.0), dataclasses.replace(trajectory(101, turns=[(2, 0)], reward=5.0), turns=())]
    with_them = run(small, tmp_path, [*several(6), *silent])
    without = run(small, tmp_path, several(6))
    assert distance(with_them[0], without[0]) == distance(with_them[1], without[1]) == 0
    assert with_them[2][0]["episodes_left_out"] == 2 and with_them[2][0]["reward_max"] == 2.0


def test_nothing_to_learn_from_is_one_clear_error(small, tmp_path):
    lost = [dataclasses.replace(t, reward=None) for t in several(4)]
    with pytest.raises(ValueError, match=r"trajectories: got 4, none to train on, wanted some with action tokens and a reward"):
        run(small, tmp_path, lost)
    with pytest.raises(ValueError, match="got 0, none to train on"):
        run(small, tmp_path, [])
    assert not (tmp_path / "p").exists()


def test_all_sequences_rejected_leave_the_policy_and_are_counted(small, tmp_path):
    _, _, log = run(small, tmp_path, settings={"mrs_band": (1.0, 1.0), "epochs": 2})
    assert all(m["mrs_rejected"] == 1.0 and m["pg_loss"] == 0 and m["actor_grad_norm"] == 0 for m in log)
    assert log[0]["action_tokens"] == run(small, tmp_path / "all")[2][0]["action_tokens"]  # N is not reduced
    assert unmoved(small, tmp_path / "p")


def test_our_failures_and_invalid_tasks_enter_neither_loss_nor_normalisation(small, tmp_path):
    judged = [
        trajectory(i, turns=[(3, 1), (2, 0)], reward=r, task="t") for i, r in enumerate((3.0, -1.0, -1.0))
    ]  # faster, wrong, timed out
    lost = [
        dataclasses.replace(trajectory(10, turns=[(4, 0)], task="t"), reward=None, stop="infra_error", error="worker lost"),
        dataclasses.replace(trajectory(11, turns=[(5, 0)], task="t"), reward=None),
    ]
    for method in ("ppo", "trloo"):
        a, b = (run(small, tmp_path, d, settings={"method": method}) for d in ([*judged, *lost], judged))
        assert distance(a[0], b[0]) == 0 and a[2][0]["episodes_left_out"] == 2 and b[2][0]["episodes_left_out"] == 0
        for name in ("reward_mean", "advantage_mean", "advantage_std", "action_tokens"):
            assert a[2][0][name] == b[2][0][name]


# -------------------------------------------------------------------------------------------- not finite


@pytest.mark.parametrize("reward", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [{}, {"whiten": False, "batch": 2}, {"method": "trloo"}, {"method": "value"}])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_reward_that_is_not_finite_stops_the_fit_and_nothing_is_written(small, tmp_path, reward, settings):
    data = several(6)
    data[2] = dataclasses.replace(data[2], reward=reward)
    with pytest.raises(FloatingPointError, match="wanted a finite number; nothing of this step is kept"):
        run(small, tmp_path, data, settings=settings)
    assert not (tmp_path / "p").exists() and not (tmp_path / "c").exists()


def one_step(current, factor):
    y = current(torch.ones(1, 3)).sum()
    y.register_hook(lambda gradient: gradient * factor)
    current.backward(y, scale_wrt_gas=False)
    return engine.step(current, 1e-2)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_gradient_that_is_not_finite_raises_moves_nothing_and_a_normal_step_goes_on(stage, broken):
    engine.launch("cpu")
    module = torch.nn.Linear(3, 2)
    before = module.weight.detach().clone()
    current = engine.initialize(module, lr=1e-2, zero_stage=stage)
    with pytest.raises(FloatingPointError, match="gradient norm: got"):
        one_step(current, broken)
    with engine.whole(current):
        assert torch.equal(module.weight, before)
    assert one_step(current, 1.0) == pytest.approx(math.sqrt(2 * 4), rel=1e-5)
    with engine.whole(current):
        assert (before - module.weight).detach().flatten().tolist() == pytest.approx([1e-2] * 6, rel=1e-4)
    current.destroy()


def test_a_fit_broken_at_its_third_step_goes_on_from_the_second(small, tmp_path, monkeypatch):
    settings = {"epochs": 2, "batch": 5, "save_after": 0.0}
    whole = run(small, tmp_path / "whole", settings=settings)
    calls, right = [], loss.policy

    def breaks(logp, *args, **options):
        calls.append(1)
        return right(logp, *args, **options) * (math.inf if len(calls) == 3 else 1.0)

    monkeypatch.setattr(loss, "policy", breaks)
    with pytest.raises(FloatingPointError, match="actor loss"):
        run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "w").glob("step-*")] == ["step-00000002"] and not (tmp_path / "r" / "p").exists()
    a, c, log = run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")
    assert [m["step"] for m in log] == [3, 4, 5, 6] and distance(a, whole[0]) == distance(c, whole[1]) == 0


def test_a_critic_that_is_far_off_is_moved_by_clipped_steps(small, tokenizer, tmp_path):
    critic = model.Critic.from_policy(small)
    torch.nn.init.constant_(critic.head.weight, 1e3)
    model.save(critic, tokenizer, tmp_path / "far", parent=None, kind="critic")
    settings = {"epochs": 3, "batch": 12, "value_clip": 0.5, "critic_lr": 1e-3}
    _, moved, log = run(small, tmp_path, settings=settings, critic=tmp_path / "far")
    assert log[0]["value_loss"] > 1e6 and log[0]["critic_grad_norm"] > 1e6 and all(math.isfinite(v) for m in log for v in m.values())
    assert distance(moved, weights(model.read_record(tmp_path / "far"))) <= 3 * 1.01e-3  # Adam's step is the rate at most
    assert all(m["ratio_max"] < 10 for m in log)


# -------------------------------------------------------------------------------------------- killed in the middle


@pytest.mark.parametrize("after", ["state.json", "actor", "critic"])
def test_a_kill_while_a_step_is_being_saved_leaves_the_one_before(small, tmp_path, monkeypatch, after):
    settings = {"epochs": 2, "batch": 5, "save_after": 0.0}
    whole = run(small, tmp_path / "whole", settings=settings)
    right = engine.save

    def dies(engines, folder, world):
        if folder.name != "step-00000003":
            return right(engines, folder, world)
        partial = folder.with_name(folder.name + ".partial")
        for name in {"actor": ["actor"], "critic": ["actor", "critic"], "state.json": []}[after]:
            engines[name].save_checkpoint(str(partial), tag=name, save_latest=False)
        raise Killed

    monkeypatch.setattr(engine, "save", dies)
    with pytest.raises(Killed):
        run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")
    monkeypatch.undo()
    assert sorted(p.name for p in (tmp_path / "w").glob("step-*")) == ["step-00000002", "step-00000003.partial"]
    a, c, log = run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")
    assert [m["step"] for m in log] == [3, 4, 5, 6] and distance(a, whole[0]) == distance(c, whole[1]) == 0
    assert not list((tmp_path / "w").glob("*.partial*"))


def test_resumed_steps_log_what_the_uninterrupted_ones_did(small, tmp_path):
    settings = {"epochs": 2, "batch": 5, "save_after": 0.0, "warmup": 3, "decay": True, "kl": "k3", "kl_coef": 0.1}
    whole = run(small, tmp_path / "whole", settings=settings)[2]

    def killer(metrics):
        if metrics["step"] == 4:
            raise Killed

    with pytest.raises(Killed):
        run(small, tmp_path / "r", settings=settings, work=tmp_path / "w", log=killer)
    rest = run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")[2]
    clocks = {"step_seconds", "tokens_per_second"}
    assert [{k: v for k, v in m.items() if k not in clocks} for m in rest] == [
        {k: v for k, v in m.items() if k not in clocks} for m in whole[3:]
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 0.9},
        {"clip_high": 0.3},
        {"lr": 2e-3},
        {"reward": 0.5},
    ],
)
def test_a_resume_with_other_settings_or_rewards_is_refused(small, tmp_path, change):
    settings = {"epochs": 2, "batch": 5, "save_after": 0.0}
    train.fit(several(12), train.Settings(**PPO | settings), policy=small, work=tmp_path / "w", stop=lambda: True, device="cpu")
    state = json.loads((tmp_path / "w" / "step-00000001" / "state.json").read_text())
    assert state["step"] == 1
    data = several(12)
    if "reward" in change:
        data[0] = dataclasses.replace(data[0], reward=change.pop("reward"))
    with pytest.raises(ValueError, match="another fit"):
        run(small, tmp_path / "r", data, settings=settings | change, work=tmp_path / "w")
