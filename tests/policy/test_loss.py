import math

import pytest
import torch

from policy import loss


def at(ratio, adv, **options):
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    value = loss.policy(logp, torch.zeros(1), torch.tensor([float(adv)]), low=0.2, high=0.28, **options)
    value.sum().backward()
    return value.item(), logp.grad.item()


@pytest.mark.parametrize(
    ("adv", "ratio", "value", "gradient", "dual"),
    [
        (1, 1.5, -1.28, 0, None),
        (1, 0.5, -0.5, -0.5, None),
        (-1, 0.5, 0.8, 0, None),
        (-1, 1.5, 1.5, 1.5, None),
        (-1, 5, 3, 0, 3.0),
        (-1, 5, 5, 5, None),
    ],
)
def test_golden_values_of_the_clipped_surrogate(adv, ratio, value, gradient, dual):
    got = at(ratio, adv, dual=dual)
    assert got == pytest.approx((value, gradient), abs=1e-6)


def test_huge_log_ratios_stay_finite():
    for d in (100.0, -100.0):
        for adv in (1.0, -1.0):
            logp = torch.tensor([d], requires_grad=True)
            value = loss.policy(logp, torch.zeros(1), torch.tensor([adv]))
            value.sum().backward()
            assert torch.isfinite(value).all() and torch.isfinite(logp.grad).all()


def test_value_loss_with_and_without_clip():
    v, ret, old = (torch.tensor([x]) for x in (1.0, 1.0, 0.0))
    assert loss.value(v, ret).item() == 0
    assert loss.value(v, ret, old, clip=0.2).item() == pytest.approx(0.32)
    r = torch.tensor([1.0, -2.0])
    assert torch.equal(loss.value(torch.zeros(2), r), 0.5 * r**2)


def test_kl_estimates():
    ln2 = math.log(2)
    for kind, value in (("k1", -ln2), ("k2", 0.5 * ln2**2), ("k3", 1 - ln2)):
        assert loss.kl(torch.zeros(1), torch.tensor([ln2]), kind).item() == pytest.approx(value, abs=1e-6)
        assert loss.kl(torch.ones(3), torch.ones(3), kind).abs().max() == 0
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        loss.kl(torch.zeros(1), torch.zeros(1), "k4")


def test_k3_and_the_loss_gradient_are_the_exact_kl_on_five_symbols():
    g = torch.Generator().manual_seed(0)
    logits, ref = torch.randn(5, generator=g).requires_grad_(), torch.randn(5, generator=g).log_softmax(-1)
    logp = logits.log_softmax(-1)
    exact = (logp.exp() * (logp - ref)).sum()
    wanted = torch.autograd.grad(exact, logits, retain_graph=True)[0]
    drawn = torch.multinomial(logp.exp().detach(), 200_000, replacement=True, generator=g)
    assert loss.kl(logp[drawn], ref[drawn], "k3").mean().item() == pytest.approx(exact.item(), abs=1e-2)
    got = torch.autograd.grad(loss.kl_loss(logp[drawn], ref[drawn], "k3").mean(), logits)[0]
    assert (got - wanted).abs().max() < 1e-2


def test_truncated_importance_weight_is_capped_and_carries_no_gradient():
    old = torch.tensor([math.log(4.0), math.log(0.5)], requires_grad=True)
    weight = loss.tis_weight(old, torch.zeros(2))
    assert weight.tolist() == pytest.approx([2.0, 0.5]) and not weight.requires_grad


def test_sequences_outside_the_band_or_with_a_vetoed_token_are_rejected():
    shift = [0.002, 0.0005, 0.0]
    seq = torch.arange(3).repeat_interleave(4)
    old = torch.tensor(shift).repeat_interleave(4)
    assert loss.mrs_keep(old, torch.zeros(12), seq).reshape(3, 4)[:, 0].tolist() == [0, 1, 1]
    spiked = torch.cat([torch.tensor([math.log(5e-5), -math.log(5e-5)]), torch.zeros(2)])
    assert loss.mrs_keep(spiked, torch.zeros(4), torch.zeros(4, dtype=torch.long)).tolist() == [0] * 4
    assert loss.mrs_keep(old[:4], torch.zeros(4), seq[:4]).sum() == 0


def test_entropy_of_a_uniform_and_of_a_tempered_distribution():
    head = torch.randn(11, 4, generator=torch.Generator().manual_seed(1))
    assert loss.entropy(torch.zeros(2, 4), head).tolist() == pytest.approx([math.log(11)] * 2, rel=1e-6)
    hidden = torch.randn(7, 4, generator=torch.Generator().manual_seed(2))
    p = torch.softmax(hidden @ head.T / 0.7, -1)
    assert torch.allclose(loss.entropy(hidden, head, temperature=0.7, chunk=3), -(p * p.log()).sum(-1), atol=1e-5)
