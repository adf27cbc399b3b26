import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from policy import batch, model
from tests.policy.conftest import make
from tests.policy.toys import several, trajectory


def logp_of(actor, rows, temperature=1.0, **options):
    b = batch.collate(rows)
    return actor(b.ids, b.positions, b.src, b.label, b.spans, temperature, **options)


def reference(lm, rows, temperature=1.0):
    """Each row alone, stock attention, full logits."""
    parts = []
    for r in rows:
        lm.set_attn_implementation("sdpa")
        logits = lm(input_ids=torch.from_numpy(r.ids)[None], use_cache=False).logits[0].float() / temperature
        lm.set_attn_implementation("policy")
        parts.append(torch.log_softmax(logits, -1)[torch.from_numpy(r.src), torch.from_numpy(r.label)])
    return torch.cat(parts)


def test_row_holds_every_token_and_points_at_the_state_before_each_action():
    t = trajectory(1, turns=[(3, 4), (2, 0)], prompt=5)
    r = batch.row(t)
    first, second = t.turns
    assert r.ids.tolist() == [*first.prompt_ids, *first.action_ids, *first.observation_ids, *second.action_ids]
    assert r.label.tolist() == [*first.action_ids, *second.action_ids]
    assert r.src.tolist() == [4, 5, 6, 11, 12] and r.turn.tolist() == [0, 0, 0, 1, 1]


def test_planted_mistakes_stay_in_the_context_and_give_no_labels():
    t = trajectory(1, turns=[(3, 4), (2, 2)], trainable=[False, True])
    r = batch.row(t)
    assert len(r.ids) == 14 and r.label.tolist() == list(t.turns[1].action_ids)


def test_only_rewarded_and_fully_sampled_episodes_reach_reinforcement():
    lost = dataclasses.replace(trajectory(2, turns=[(3, 1)]), reward=None)
    good = trajectory(3, turns=[(3, 1)])
    assert [r.id for r in batch.rows([lost, good], rewarded=True, sampled=True)] == [good.id]
    assert len(batch.rows([lost, good], rewarded=False, sampled=False)) == 2
    with pytest.raises(ValueError, match="without log-probabilities"):
        batch.rows([trajectory(4, turns=[(3, 1)], logprobs=False)], rewarded=True, sampled=True)
    with pytest.raises(ValueError, match="finite"):
        dataclasses.replace(good.turns[0], action_logprobs=(0.0, float("nan"), 0.0))
    with pytest.raises(ValueError, match="without a prompt"):
        batch.row(trajectory(5, turns=[(3, 1)], prompt=0))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_packed_chunked_logprobs_equal_single_sequences_with_full_logits(tokenizer, tmp_path, tied, temperature):
    lm, _, _ = model.load(make(tokenizer, tmp_path / "m", seed=3, tied=tied))
    rows = [batch.row(t) for t in several(5)]
    wanted = reference(lm, rows, temperature)
    wanted_grads = torch.autograd.grad((wanted * torch.linspace(-1, 1, len(wanted))).sum(), list(lm.parameters()))
    actor = model.Actor(lm)
    for chunk in (1, 7, len(wanted), None):
        got = logp_of(actor, rows, temperature, chunk=chunk)
        assert got.dtype == torch.float32 and (got - wanted).abs().max() <= 2e-6 * max(1, wanted.abs().max())
        grads = torch.autograd.grad((got * torch.linspace(-1, 1, len(got))).sum(), list(lm.parameters()))
        assert max((a - b).abs().max() / b.abs().max().clamp(min=1) for a, b in zip(grads, wanted_grads, strict=True)) <= 1e-5
    b = batch.collate(rows)
    shifted = actor(b.ids, b.positions, (b.src + 1).clamp(max=b.ids.shape[1] - 1), b.label, b.spans, temperature)
    assert (shifted - wanted).abs().max() > 0.1


def test_micro_batch_without_action_tokens_gives_zero_gradients(small):
    lm, _, _ = model.load(small)
    r = batch.row(trajectory(1, turns=[(3, 4)]))
    empty = dataclasses.replace(r, src=r.src[:0], turn=r.turn[:0], rollout_logp=r.rollout_logp[:0])
    logp_of(model.Actor(lm), [empty]).sum().backward()
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in lm.parameters())


def test_loss_reaches_the_head_from_action_positions_only(small):
    lm, _, _ = model.load(small)
    kept = []
    lm.model.norm.register_forward_hook(lambda module, args, out: (out.retain_grad(), kept.append(out))[0])
    rows = [batch.row(t) for t in several(3)]
    b = batch.collate(rows)
    logp_of(model.Actor(lm), rows).sum().backward()
    touched = kept[0].grad[0].abs().sum(-1).nonzero()[:, 0].tolist()
    assert touched == b.src.tolist()


class Largest(TorchDispatchMode):
    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if torch.is_tensor(tensor):
                self.size = max(self.size, tensor.numel())
        return out


def test_no_tensor_of_action_tokens_times_vocabulary_is_made(tokenizer):
    lm = model.create(tokenizer, hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16)
    r = batch.row(trajectory(1, turns=[(600, 1)]))
    with Largest() as seen:
        logp_of(model.Actor(lm), [r]).sum().backward()
    assert seen.size < 600 * len(tokenizer) / 4


def test_bf16_weights_still_give_fp32_logits(small):
    lm, _, _ = model.load(small, dtype=torch.bfloat16)
    rows = [batch.row(t) for t in several(4)]
    b = batch.collate(rows)
    hidden = lm.model(input_ids=b.ids, position_ids=b.positions, use_cache=False, spans=b.spans).last_hidden_state[0, b.src]
    exact = torch.log_softmax(hidden.double() @ lm.lm_head.weight.double().T, -1).gather(-1, b.label[:, None])[:, 0]
    coarse = torch.log_softmax(lm.lm_head(hidden), -1).gather(-1, b.label[:, None])[:, 0]
    fine = (logp_of(model.Actor(lm), rows) - exact).abs().max()
    # the CPU has no mixed product: the logit itself is rounded to bf16 there, its softmax is not
    assert fine < (coarse - exact).abs().max() and fine < 0.05


def test_packing_keeps_the_budget_and_every_row_once():
    rows = [batch.row(t) for t in several(40)]
    packed = batch.pack(rows, 64)
    assert sorted(r.id for part in packed for r in part) == sorted(r.id for r in rows)
    assert all(sum(map(len, part)) <= 64 or len(part) == 1 for part in packed)
    assert len(packed) <= 1.3 * sum(map(len, rows)) / 64 + 1


def test_ranks_get_equal_numbers_of_micro_batches_and_share_every_row():
    rows = [batch.row(t) for t in several(7)]
    per_rank = [list(batch.micro_batches(rows, tokens=30, rank=rank, world=3)) for rank in range(3)]
    assert len({len(part) for part in per_rank}) == 1
    assert sorted(r.id for part in per_rank for _, members in part for r in members) == sorted(r.id for r in rows)
    fillers = [b for part in per_rank for b, members in part if not members]
    assert all(b.weight.sum() == 0 and b.ids.numel() for b in fillers)
    assert np.isclose(sum(b.weight.sum().item() for part in per_rank for b, _ in part), sum(r.actions for r in rows))
