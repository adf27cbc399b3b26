"""The options of reinforcement, each against numbers worked out by hand or a computation of its own."""

import collections
import dataclasses

import numpy as np
import pytest
import torch

from data.records import Task
from policy import batch, curriculum, loss, model, train
from tests.policy.test_train import PPO, distance, run, weights
from tests.policy.toys import several, trajectory

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


def test_the_loss_on_positives_is_the_mean_over_their_tokens_alone(small):
    lm, _, _ = model.load(small)
    actor, rows = model.Actor(lm), batch.rows(several(6), rewarded=True, sampled=True)
    for r in rows:
        r.old_logp, r.adv = r.rollout_logp, np.zeros(r.actions)
    settings = train.Settings(**PPO | {"positive_coef": 0.5, "min_reward": 1.0})
    train._mark_positive(rows, settings.min_reward)
    per_token, seen = train._actor_loss(actor, batch.collate(rows), rows, settings)
    good = batch.collate([r for r in rows if r.reward >= 1.0])
    wanted = -actor(good.ids, good.positions, good.src, good.label, good.spans).mean()
    total = sum(r.actions for r in rows)
    assert 0 < len(good.src) < total
    assert (per_token.sum() / total).item() == pytest.approx(0.5 * wanted.item(), rel=1e-5)
    assert train._metrics("actor", {k: v.detach().numpy() for k, v in seen.items()}, settings)["positive_nll"] == pytest.approx(
        wanted.item(), rel=1e-5
    )
    train._mark_positive(rows, 99.0)
    assert all((r.positive == 0).all() for r in rows)


def test_positives_split_over_micro_batches_weigh_the_same(small, tmp_path):
    settings = {"positive_coef": 1.0, "min_reward": 1.0, "batch": 12}
    whole, split = (run(small, tmp_path, settings=settings | {"tokens": tokens}) for tokens in (4096, 20))
    assert split[2][0]["actor_grad_norm"] == pytest.approx(whole[2][0]["actor_grad_norm"], rel=1e-4)
    assert split[2][0]["positive_nll"] == pytest.approx(whole[2][0]["positive_nll"], rel=1e-5)
    assert whole[2][0]["actor_grad_norm"] != pytest.approx(run(small, tmp_path, settings={"batch": 12})[2][0]["actor_grad_norm"], rel=1e-2)


def test_kl_is_measured_to_the_given_reference(small, tokenizer, tmp_path):
    from tests.policy.conftest import make

    other = make(tokenizer, tmp_path / "other", seed=5)
    log = run(small, tmp_path, settings={"kl": "k3", "kl_coef": 0.1, "batch": 12}, reference=other)[2]
    b = batch.collate(batch.rows(several(12), rewarded=True, sampled=True))
    mine, theirs = (model.Actor(model.load(p)[0])(b.ids, b.positions, b.src, b.label, b.spans).detach() for p in (small, other))
    assert log[0]["kl_reference"] == pytest.approx(loss.kl(mine, theirs, "k3").mean().item(), rel=1e-4)


@pytest.mark.parametrize(("bound", "name"), [({"diverged_kl": 1e-6}, "approx_kl_k3"), ({"diverged_entropy": 1.0001}, "entropy")])
def test_a_fit_ends_before_the_step_that_shows_divergence(small, tokenizer, tmp_path, bound, name):
    data = several(12)
    settings, places = {"batch": 12, "epochs": 6, "lr": 5e-3, "method": "trloo"}, {}
    if name == "entropy":  # drawn to a flat reference
        flat = model.create(tokenizer, hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64, context=512)
        model.save(flat, tokenizer, tmp_path / "flat", parent=None, kind="base")
        settings, places = settings | {"kl": "k2", "kl_coef": 100.0}, {"reference": tmp_path / "flat"}
    free = run(small, tmp_path / "free", data, settings=settings, **places)[2]
    fits = []
    for work in (None, tmp_path / "w", tmp_path / "w"):  # the last resumes what has ended
        log = []
        wanted = train.Settings(**PPO | settings | bound)
        fits.append(train.fit(data, wanted, policy=small, out=tmp_path / "p", work=work, log=log.append, device="cpu", **places))
        if len(fits) < 3:
            assert len(log) < len(free) and all(m[name] == pytest.approx(f[name], rel=1e-4) for m, f in zip(log, free, strict=False))
            assert "actor_grad_norm" not in log[-1] and all("actor_grad_norm" in m for m in log[:-1])
            value = log[-1][name] / (log[0][name] if name == "entropy" else 1.0)
            assert value > next(iter(bound.values()))
    assert fits[0].steps == fits[1].steps == fits[2].steps >= 1 and fits[0].ended == fits[1].ended == fits[2].ended
    assert fits[0].ended.startswith(name) and f"at step {fits[0].steps + 1} of 6" in fits[0].ended
    before = run(small, tmp_path / "before", data, settings=settings | {"epochs": fits[0].steps}, **places)[0]
    assert distance(weights(fits[0].policy), before) == 0


def test_a_fit_within_its_bounds_is_the_fit_without_them(small, tmp_path):
    free = run(small, tmp_path / "a", settings={"epochs": 2})
    bound = run(small, tmp_path / "b", settings={"epochs": 2, "diverged_kl": 1e3, "diverged_entropy": 1e3})
    assert all(torch.equal(free[0][k], bound[0][k]) for k in free[0])


@pytest.mark.parametrize(
    "wrong",
    [{"clip_low": 1.0}, {"clip_high": 0.0}, {"dual_clip": 1.0}, {"value_clip": 0.0}, {"kl_coef": 0.1}, {"positive_coef": -1.0}, {"tis_cap": 0.5},
     {"mrs_band": (1.1, 1.2)}, {"diverged_entropy": 1.0}],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: got"):
        train.Settings(**PPO | wrong)


def test_the_baseline_is_of_one_tasks_samples_by_one_policy_and_one_turn():
    made = [
        trajectory(i, turns=[(2, 1), (3, 0)], reward=r, task=task)
        for i, (r, task) in enumerate([(1, "a"), (0, "a"), (0, "a"), (2, "b"), (5, "b")])
    ]
    made[4] = dataclasses.replace(made[4], checkpoint="another")
    made.append(trajectory(9, turns=[(4, 0)], reward=2, task="a"))
    rows = batch.rows(made, rewarded=True, sampled=True)
    for r in rows:  # gamma 0.5 a turn
        r.mc = np.where(r.turn == r.turn[-1], r.reward, 0.5 * r.reward)
    train._leave_one_out(rows)
    # first turns of a return 0.5, 0, 0 and 2 (which has no second), second turns 1, 0, 0
    first, second = [r.adv[0] for r in rows], [r.adv[-1] for r in rows]
    assert first == pytest.approx([0.5 - 2 / 3, -2.5 / 3, -2.5 / 3, 1.0, 2.5, 2 - 0.5 / 3])
    assert second[:5] == pytest.approx([1.0, -0.5, -0.5, 2.0, 5.0])
    assert all(len(set(r.adv[r.turn == turn])) == 1 for r in rows for turn in set(r.turn))
