"""Losses per action token: pure functions of float32 [M] tensors. Nothing here reduces, gathers or reads a configuration.

The scalar that is differentiated is sum(loss * weight) / N with N the action tokens of the whole optimizer step, over all ranks
and before any rejection: splitting a step into micro-batches or ranks, or rejecting tokens, never changes another token's share.
"""

from __future__ import annotations

import torch

BOUND = 20.0
"""Log-ratios are clamped to +-20 before exp: e^20 = 4.9e8 stays finite in float32, also when squared."""


def log_ratio(logp, old_logp):
    """clamp(logp - old_logp, -20, 20): [M]; no gradient beyond the bound."""
    return (logp - old_logp).clamp(-BOUND, BOUND)


def policy(logp, old_logp, adv, *, low: float = 0.2, high: float = 0.28, dual: float | None = None, weight=None):
    """PPO's clipped surrogate with separate bounds, [M] -> [M]; minimised.

    r = exp(logp - old_logp), loss = -w min(r A, clip(r, 1 - low, 1 + high) A) (Schulman et al., 2017, eq. 7; CUDA Agent:
    low 0.2, high 0.28). `dual` c > 1 bounds the loss at -c A where A < 0. `weight` [M], detached, corrects for the sampler.
    """
    ratio = log_ratio(logp, old_logp).exp()
    gain = torch.minimum(ratio * adv, ratio.clamp(1 - low, 1 + high) * adv)
    if dual is not None:
        gain = torch.where(adv < 0, torch.maximum(gain, dual * adv), gain)
    return -gain if weight is None else -gain * weight.detach()


def value(v, ret, v_old=None, *, clip: float | None = None):
    """0.5 (v - R)^2, [M] -> [M]; with `clip` c: 0.5 max((v - R)^2, (v_old + clamp(v - v_old, -c, c) - R)^2)."""
    plain = (v - ret).square()
    if clip is None:
        return 0.5 * plain
    near = v_old + (v - v_old).clamp(-clip, clip)
    return 0.5 * torch.maximum(plain, (near - ret).square())


def nll(logp):
    """Negative log-likelihood of imitation (SFT, RFT): [M] -> [M]."""
    return -logp


def kl(logp, ref_logp, kind: str):
    """Estimate of KL(policy || reference) at sampled tokens, [M] -> [M]; d = ref_logp - logp, clamped (Schulman, 2020).

    k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d. Raises ValueError for another kind.
    """
    d = (ref_logp - logp).clamp(-BOUND, BOUND)
    if kind == "k1":
        return -d
    if kind == "k2":
        return 0.5 * d.square()
    if kind == "k3":
        return d.exp() - 1 - d
    raise ValueError(f"kl: got {kind!r}, wanted k1, k2 or k3")


def kl_loss(logp, ref_logp, kind: str = "k3"):
    """The value of `kind` with k2's gradient, whose expectation is the KL's own (k3's and k1's are not): [M] -> [M]."""
    exact = kl(logp, ref_logp, "k2")
    return kl(logp, ref_logp, kind).detach() + exact - exact.detach()


def tis_weight(old_logp, rollout_logp, *, cap: float = 2.0):
    """Truncated importance weight for a sampler that computes differently: min(exp(old - rollout), cap), no gradient; [M]."""
    return log_ratio(old_logp, rollout_logp).exp().clamp(max=cap).detach()


def mrs_keep(old_logp, rollout_logp, seq, *, band: tuple[float, float] = (0.999, 1.001), veto: float = 1e-4):
    """Which tokens' sequences are kept, float32 [M] of 0 and 1: mismatch rejection of whole sequences (Dr.Kernel).

    Kept: band[0] <= exp(mean log-ratio of the sequence) <= band[1], and no token's ratio below `veto`. seq int64 [M].
    """
    d = (old_logp - rollout_logp).detach().double()
    size = int(seq.max()) + 1 if len(seq) else 0
    total = torch.zeros(size, dtype=d.dtype, device=d.device).index_add_(0, seq, d)
    count = torch.zeros_like(total).index_add_(0, seq, torch.ones_like(d))
    lowest = torch.zeros_like(total).scatter_reduce_(0, seq, d, "amin", include_self=False)
    mean = (total / count.clamp(min=1)).exp()
    good = (mean >= band[0]) & (mean <= band[1]) & (lowest.exp() >= veto)
    return good[seq].float()


def entropy(hidden, head, *, temperature: float = 1.0, bias=None, chunk: int = 1024):
    """-sum p log p of the tempered next-token distribution; hidden [K, H], head [V, H] -> float32 [K]; no gradient, chunked."""
    out = []
    with torch.no_grad():
        for part in hidden.split(chunk):
            logp = torch.log_softmax(torch.nn.functional.linear(part / temperature, head, bias).float(), -1)
            out.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(out) if out else hidden.new_zeros(0, dtype=torch.float32)
