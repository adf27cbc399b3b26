"""What stands between two turns, or is not learned, moves neither advantages nor loss; splitting or repeating a step changes nothing."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from policy import advantage, batch, loss, measure, model, train
from tests.policy.conftest import make
from tests.policy.test_train import PPO, distance, run, weights
from tests.policy.toys import several, trajectory

SGD = {"lr": 1.0, "critic_lr": 1.0, "grad_clip": 1e-10}
"""Adam's eps of 1e-8 outweighs a gradient clipped to 1e-10: the update is linear in the gradient, and its rounding stays rounding."""
EQUAL = 1e-6


def compacted(mask, values):
    return np.asarray(values, float)[np.asarray(mask, bool)]


def prepared(monkeypatch, data, *, value=None, **settings):
    """Rows after the real preparation of a fit, with `value(row) -> [A]` as the critic's answer, keyed by id."""

    def score(groups, field, module, call, settings, world):
        for chosen in groups:
            for r in chosen:
                setattr(r, field, value(r) if field == "v_old" and value else np.zeros(r.actions))

    monkeypatch.setattr(train, "_score", score)
    rows = batch.rows(data, rewarded=True, sampled=True)
    chosen = train.Settings(**(PPO | {"whiten": False, "lam": 0.9, "lam_critic": 0.9} | settings))
    engines = {"actor": None} | ({"critic": None} if chosen.method == "ppo" else {})
    train._prepare(train._Plan(rows, chosen), 0, engines, chosen, None, None)
    return {r.id: r for r in rows}


# -------------------------------------------------------------------------------------------- credit


@pytest.mark.parametrize(
    ("gamma", "wanted"), [(1.0, [0.7997375, 0.736575, 0.67, 0.6]), (0.99, [0.773330, 0.718017, 0.6603, 0.6])], ids=["1", "0.99"]
)
def test_observation_tokens_are_no_steps_of_the_estimate(gamma, wanted):
    mask, values = [1, 1, 0, 0, 1, 1], [0.1, 0.2, 9.9, 9.9, 0.3, 0.4]
    v = compacted(mask, values)
    adv, ret = advantage.token_credit(advantage.rewards(4, 1.0), v, gamma=gamma, lam=0.95, lam_critic=0.95)
    assert np.allclose(adv, wanted, atol=1e-4) and np.allclose(ret, adv + v)


@pytest.mark.parametrize(("gamma", "wanted"), [(0.9, [0.9, 1.0]), (0.0, [0.0, 1.0])])
def test_an_episode_that_ends_with_an_observation_keeps_its_reward(monkeypatch, gamma, wanted):
    t = trajectory(1, turns=[(2, 1)], reward=1.0)  # mask 1 1 0
    r = prepared(monkeypatch, [t], unit="token", gamma=gamma, lam=1.0)[t.id]
    assert r.adv.tolist() == pytest.approx(wanted) and len(r.ids) == 5 + 2


def test_an_observation_is_no_end_of_the_episode():
    assert advantage.returns_to_go(compacted([1, 0, 1], [0, 0, 1]), gamma=0.5).tolist() == [0.5, 1.0]
    assert advantage.returns_to_go(advantage.rewards(4, 1.0)).tolist() == [1.0] * 4


@pytest.mark.parametrize("unit", ["token", "turn"])
@pytest.mark.parametrize("method", ["ppo", "trloo"])
def test_an_observation_of_any_length_leaves_advantages_and_returns_as_they_were(monkeypatch, unit, method):
    value = lambda r: np.cos(r.label + np.arange(r.actions))
    actions = (3, 2, 4)
    plain = trajectory(1, turns=[(n, 0) for n in actions], reward=2.0)
    base = prepared(monkeypatch, [plain], value=value, unit=unit, method=method)[plain.id]
    for lengths in ((1, 1, 0), (400, 0, 7), (10, 100, 0)):
        turns = [dataclasses.replace(turn, observation_ids=(9,) * n) for turn, n in zip(plain.turns, lengths, strict=True)]
        longer = dataclasses.replace(plain, turns=tuple(turns))
        got = prepared(monkeypatch, [longer], value=value, unit=unit, method=method)[plain.id]
        assert len(got.ids) == len(base.ids) + sum(lengths[:2])
        assert np.array_equal(got.adv, base.adv) and np.array_equal(got.label, base.label)
        assert method == "trloo" or np.array_equal(got.ret, base.ret)


def test_one_episodes_credit_does_not_depend_on_its_neighbours(monkeypatch):
    data, value = several(9), lambda r: np.sin(r.label)
    together = prepared(monkeypatch, data, value=value, unit="token")
    for t in data:
        alone = prepared(monkeypatch, [t], value=value, unit="token")[t.id]
        assert np.array_equal(together[t.id].adv, alone.adv) and np.array_equal(together[t.id].ret, alone.ret)


def test_whitened_advantages_have_mean_zero_and_variance_one_over_all_action_tokens(monkeypatch):
    rows = prepared(monkeypatch, several(20), value=lambda r: np.sin(r.label), whiten=True).values()
    everything = np.concatenate([r.adv for r in rows])
    assert len(everything) == sum(r.actions for r in rows) and abs(everything.mean()) < 1e-6 and abs(everything.var() - 1) < 1e-6
    assert max(abs(r.adv.mean()) for r in rows) > 0.1  # over all of them, not row by row


def test_turns_that_are_not_learned_stay_out_of_the_leave_one_out_baseline(monkeypatch):
    learned = [trajectory(i, turns=[(2, 1), (2, 0)], reward=r, task="t") for i, r in enumerate((1.0, 0.0, 0.0))]
    planted = trajectory(3, turns=[(2, 1), (2, 0)], reward=9.0, task="t", trainable=[False, True])
    rows = prepared(monkeypatch, [*learned, planted], method="trloo")
    assert [rows[t.id].adv[0] for t in learned] == pytest.approx([1, -0.5, -0.5])  # turn 0: three
    assert [rows[t.id].adv[-1] for t in [*learned, planted]] == pytest.approx([1 - 3, -10 / 3, -10 / 3, 9 - 1 / 3])  # turn 1: four


# -------------------------------------------------------------------------------------------- batch and loss


def gradients(lm, rows, weight=1.0):
    b = batch.collate(rows, weight=weight)
    per_token = -model.Actor(lm)(b.ids, b.positions, b.src, b.label, b.spans)
    return per_token.detach(), torch.autograd.grad((per_token * b.weight).sum(), list(lm.parameters()))


def same(a, b):
    return torch.equal(a[0], b[0]) and all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))


def test_what_is_no_action_leaves_loss_and_gradients_bit_for_bit(small):
    lm, _, _ = model.load(small)
    t = trajectory(1, turns=[(3, 4), (2, 3)], trainable=[True, False])
    base = gradients(lm, [batch.row(t)])
    replaced = lambda i, **change: dataclasses.replace(
        t, turns=tuple(dataclasses.replace(x, **change) if j == i else x for j, x in enumerate(t.turns))
    )
    assert same(base, gradients(lm, [batch.row(replaced(1, observation_ids=(77, 78)))]))
    assert same(base, gradients(lm, [batch.row(replaced(1, action_ids=(88, 89)))]))
    assert same(base, gradients(lm, [batch.row(replaced(1, action_logprobs=(-1e9, 1.0)))]))
    first = t.turns[0].action_ids
    assert not same(base, gradients(lm, [batch.row(replaced(0, action_ids=(*first[:-1], first[-1] + 1)))]))


def test_values_come_from_the_states_before_actions_whatever_stands_elsewhere(small):
    rows = [batch.row(t) for t in several(4)]
    b = batch.collate(rows)
    critic = model.Critic.from_policy(small)
    torch.nn.init.normal_(critic.head.weight)
    clean = critic(b.ids, b.positions, b.src, b.spans)
    elsewhere = torch.ones(b.ids.shape[1], dtype=torch.bool)
    elsewhere[b.src] = False
    critic.backbone.norm.register_forward_hook(lambda module, args, out: out.masked_fill(elsewhere[None, :, None], float("nan")))
    poisoned = critic(b.ids, b.positions, b.src, b.spans)
    assert torch.equal(poisoned, clean)
    poisoned.sum().backward()
    assert torch.isfinite(critic.head.weight.grad).all()


def test_packed_values_and_their_gradients_equal_single_rows(small):
    rows = [batch.row(t) for t in several(6)]
    critic = model.Critic.from_policy(small)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))

    def values(chosen):
        b = batch.collate(chosen)
        return critic(b.ids, b.positions, b.src, b.spans)

    packed, single = values(rows), torch.cat([values([r]) for r in rows])
    assert (packed - single).abs().max() <= 1e-6 * max(1, single.abs().max())
    coefficient = torch.linspace(-1, 1, len(packed))
    one, other = (torch.autograd.grad((v * coefficient).sum(), list(critic.parameters())) for v in (packed, single))
    assert max(((x - y).abs().max() / y.abs().max().clamp(min=1)).item() for x, y in zip(one, other, strict=True)) <= 1e-5


@pytest.mark.parametrize("extra", [{"attention_mask": True}, {"use_cache": True}, {"attention_mask": True, "use_cache": True}])
def test_a_mask_or_a_cache_that_slips_in_does_not_undo_packing(small, extra):
    lm, _, _ = model.load(small)
    b = batch.collate([batch.row(t) for t in several(3)])
    given = {"input_ids": b.ids, "position_ids": b.positions, "spans": b.spans}
    right = lm.base_model(**given, use_cache=False).last_hidden_state
    options = {"use_cache": False} | ({"attention_mask": torch.ones_like(b.ids)} if "attention_mask" in extra else {})
    options |= {"use_cache": extra.get("use_cache", False)}
    assert torch.equal(lm.base_model(**given, **options).last_hidden_state, right)


@pytest.mark.parametrize("biased", [False, True])
def test_chunked_logprobs_and_gradients_equal_full_logits_in_fp64(biased):
    class Head(torch.nn.Module):
        """An LM whose hidden states are its parameter."""

        def __init__(self):
            super().__init__()
            g = torch.Generator().manual_seed(0)
            self.hidden = torch.nn.Parameter(torch.randn(1, 9, 5, generator=g))
            self.head, self.config = torch.nn.Linear(5, 13, bias=biased), None
            with torch.no_grad():
                for p in self.head.parameters():
                    p.copy_(torch.randn(p.shape, generator=g))

        def base_model(self, **given):
            return type("Out", (), {"last_hidden_state": self.hidden})

        def get_output_embeddings(self):
            return self.head

    lm = Head()
    src, label = torch.tensor([0, 2, 3, 4, 5, 8, 8]), torch.tensor([0, 12, 3, 3, 7, 1, 11])
    coefficient = torch.linspace(-1, 1, 7)
    parameters = list(lm.parameters())
    for temperature in (0.7, 1.0):
        double = [p.detach().double().requires_grad_() for p in parameters]
        logits = torch.nn.functional.linear(double[0][0, src] / temperature, double[1], double[2] if biased else None)
        wanted = torch.log_softmax(logits, -1)[torch.arange(7), label]
        wanted_gradients = torch.autograd.grad((wanted * coefficient).sum(), double)
        for chunk in (1, 3, 7, None):
            got = model.Actor(lm)(None, None, src, label, None, temperature, chunk=chunk)
            got_gradients = torch.autograd.grad((got * coefficient).sum(), parameters)
            assert (got - wanted).abs().max() <= 1e-6 * max(1, wanted.abs().max())
            assert max((x - y).abs().max() for x, y in zip(got_gradients, wanted_gradients, strict=True)) <= 1e-5


def test_the_largest_tensor_of_a_loss_grows_with_tokens_times_width_not_times_vocabulary(tokenizer, tmp_path):
    from tests.policy.test_batch import Largest

    lm, _, _ = model.load(make(tokenizer, tmp_path / "m", seed=0, hidden=16, heads=2, kv_heads=1, intermediate=16, layers=1, context=4096))
    sizes = []
    for count in (512, 2048):
        b = batch.collate([batch.row(trajectory(1, turns=[(count, 0)]))])
        with Largest() as seen:
            model.Actor(lm)(b.ids, b.positions, b.src, b.label, b.spans).sum().backward()
        sizes.append(seen.size)
    assert sizes[1] < 2048 * len(tokenizer) / 2 and sizes[1] < 4.5 * sizes[0]


def test_doubling_advantages_doubles_the_loss_and_negating_negates_it():
    g = torch.Generator().manual_seed(0)
    old, adv = torch.randn(12, generator=g), torch.randn(12, generator=g)
    logp = old + 0.05 * torch.randn(12, generator=g)  # within the clip bounds
    assert torch.equal(loss.policy(logp, old, 2 * adv), 2 * loss.policy(logp, old, adv))
    assert torch.equal(loss.policy(old, old, -adv), -loss.policy(old, old, adv))


def test_a_micro_batch_that_only_keeps_ranks_in_step_has_zero_gradients(small):
    lm, _, _ = model.load(small)
    _, filler = gradients(lm, [batch.row(trajectory(1, turns=[(3, 2), (4, 0)]))], weight=0.0)
    assert all(g.abs().max() == 0 for g in filler)


def test_stop_flags_are_those_of_the_episode_not_of_its_length():
    longest, shorter = trajectory(1, turns=[(9, 9), (9, 0)], stop="done"), trajectory(2, turns=[(2, 0)], stop="context")
    rows = batch.rows([longest, shorter, trajectory(3, turns=[(3, 0)], stop="done")], rewarded=True, sampled=True)
    assert [r.stop for r in rows] == ["done", "context", "done"]
    assert measure.data(rows, 0)["stop_done"] == pytest.approx(2 / 3) and measure.data(rows, 0)["stop_context"] == pytest.approx(1 / 3)


def test_logprobs_of_another_length_are_refused():
    turn = trajectory(1, turns=[(3, 0)]).turns[0]
    for wrong in ((), (-0.1, -0.2), (-0.1,) * 4):
        with pytest.raises(ValueError, match=r"action_logprobs: got .*wanted 3 values"):
            dataclasses.replace(turn, action_logprobs=wrong)
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="finite"):
            dataclasses.replace(turn, action_logprobs=(-0.1, wrong, -0.2))


# -------------------------------------------------------------------------------------------- a whole step


@pytest.mark.parametrize("method", ["ppo", "trloo", "sft", "value"])
def test_splitting_a_step_and_sharding_it_moves_the_weights_alike(small, tmp_path, record_property, method):
    settings = {"method": method, "epochs": 2} | SGD
    base = run(small, tmp_path, settings=settings)
    if base[0]:
        assert distance(base[0], weights(model.read_record(small))) > 1000 * EQUAL
    if base[1]:
        assert base[1]["value_head.safetensors weight"].abs().max() > 1000 * EQUAL
    cases = [{"tokens": 1}, {"zero_stage": 3, "tokens": 40}]
    if method == "ppo":
        cases += [{"tokens": 40}, {"zero_stage": 0}, {"zero_stage": 2}]
    for case in cases:
        other = run(small, tmp_path, settings=settings | case)
        for a, b in zip(base[:2], other[:2], strict=True):
            assert a.keys() == b.keys() and (not a or distance(a, b) <= EQUAL), case
            record_property(f"{case}", distance(a, b) if a else 0.0)
    assert any(base[:2])


def test_the_same_episodes_twice_give_the_same_mean_gradient(small, tmp_path):
    data = [trajectory(i, turns=[(4, 2), (3, 0)], seed=i, reward=float(i % 3)) for i in range(6)]
    twice = data + [dataclasses.replace(t, sample=t.sample + 100) for t in data]
    once, again = (run(small, tmp_path, d, settings={"batch": len(d), "whiten": False} | SGD) for d in (data, twice))
    assert distance(once[0], again[0]) <= EQUAL and distance(once[1], again[1]) <= EQUAL
    for name in ("actor_grad_norm", "critic_grad_norm", "pg_loss", "value_loss"):
        assert once[2][0][name] == pytest.approx(again[2][0][name], rel=1e-5)


def test_the_reported_loss_is_over_all_action_tokens_of_the_step(small, tmp_path):
    whole = run(small, tmp_path, settings={"batch": 12})[2][0]
    split = run(small, tmp_path, settings={"batch": 12, "tokens": 1})[2][0]
    for name in ("pg_loss", "value_loss", "explained_var", "explained_var_mc", "value_last", "returns_mean", "actor_grad_norm"):
        assert whole[name] == pytest.approx(split[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("tied", [True, False])
def test_sharded_weights_are_exported_as_they_were_loaded(tokenizer, tmp_path, tied):
    start = make(tokenizer, tmp_path / "start", seed=3, tied=tied)
    run(start, tmp_path, settings={"lr": 0.0, "critic_lr": 0.0, "zero_stage": 3})
    one, two = weights(model.read_record(start)), weights(model.read_record(tmp_path / "p"))
    assert one.keys() == two.keys() and distance(one, two) == 0
    ids = torch.arange(20)[None]
    assert torch.equal(model.load(start)[0](input_ids=ids).logits, model.load(tmp_path / "p")[0](input_ids=ids).logits)
