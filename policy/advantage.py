"""Advantages on compacted action tokens: pure functions of numpy arrays in float64.

Compacted means that observation tokens are not there at all: the value that follows an action token is that of the next
*action* token, however long the tool's answer between them (systems that zero or keep observation values get even the sign wrong).
"""

from __future__ import annotations

import numpy as np


def scan(delta: np.ndarray, decay: float) -> np.ndarray:
    """y[t] = delta[t] + decay * y[t+1], y[M] = 0; [M] -> [M], by doubling: log2(M) passes, for 0 <= decay <= 1."""
    out, step, factor = np.array(delta, np.float64), 1, float(decay)
    while step < len(out) and factor:
        out[:-step] = out[:-step] + factor * out[step:]
        step, factor = 2 * step, factor * factor
    return out


def gae(reward: np.ndarray, value: np.ndarray, *, gamma: float = 1.0, lam: float = 0.95, bootstrap: float = 0.0) -> np.ndarray:
    """Generalized advantage estimate of one episode; reward and value [A] at its action tokens -> [A].

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = sum_k (gamma lam)^k delta_{t+k} (Schulman et al., 2015, eq. 16).
    `bootstrap` stands for the value after the last action: 0 when the outcome's reward has been given, as it always is here.
    """
    reward, value = np.asarray(reward, np.float64), np.asarray(value, np.float64)
    return scan(reward + gamma * np.append(value[1:], bootstrap) - value, gamma * lam)


def token_credit(reward, value, *, gamma: float, lam: float, lam_critic: float):
    """(advantage [A], return [A]) of one episode with every token an action: returns are GAE(lam_critic) + V."""
    value = np.asarray(value, np.float64)
    return gae(reward, value, gamma=gamma, lam=lam), gae(reward, value, gamma=gamma, lam=lam_critic) + value


def turn_credit(reward, value, turn, *, gamma: float, lam: float, lam_critic: float):
    """(advantage [A], return [A]) with every turn one action: lambda and gamma count turns, not tokens.

    A turn's value is that of the state before its first token, its reward the sum over its tokens; every token of the turn gets
    the turn's advantage and return. turn int [A], not decreasing.
    """
    reward, value, turn = np.asarray(reward, np.float64), np.asarray(value, np.float64), np.asarray(turn)
    first = np.flatnonzero(np.append(True, turn[1:] != turn[:-1]))
    index = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(turn))))
    adv, ret = token_credit(np.add.reduceat(reward, first), value[first], gamma=gamma, lam=lam, lam_critic=lam_critic)
    return adv[index], ret[index]


def rewards(actions: int, outcome: float, penalty: np.ndarray | None = None) -> np.ndarray:
    """[A]: the outcome on the last action token, minus `penalty` [A] (for example KL) everywhere."""
    out = np.zeros(actions) if penalty is None else -np.asarray(penalty, np.float64)
    out[-1] += outcome
    return out


def returns_to_go(reward, *, gamma: float = 1.0) -> np.ndarray:
    """Monte-Carlo return at each action token: sum_k gamma^k r_{t+k}; [A] -> [A]."""
    return scan(np.asarray(reward, np.float64), gamma)


def adaptive_lambda(actions: int, alpha: float) -> float:
    """1 - 1 / (alpha * A), at least 0: longer episodes forget later (VAPO, section 4.2)."""
    return max(0.0, 1.0 - 1.0 / (alpha * actions))


def trloo(returns, groups) -> np.ndarray:
    """Turn-level REINFORCE leave-one-out: A_i = N / (N - 1) (G_i - mean of its group) = G_i - mean of the others; [S] -> [S].

    `groups` [S] names each entry's group, one a (task, turn). A group of one has no baseline: A = G (Dr.Kernel's rule).
    """
    returns = np.asarray(returns, np.float64)
    _, index, count = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    index = index.reshape(-1)
    mean = np.bincount(index, returns) / count
    size = count[index]
    return np.where(size > 1, size / np.maximum(size - 1, 1) * (returns - mean[index]), returns)


def whiten(adv: np.ndarray, *, floor: float = 1e-6) -> np.ndarray:
    """(A - mean) / std over all the action tokens it is given, which must be those of all ranks; [M] -> [M].

    A constant, a single token or none gives zeros, and so does a spread of less than `floor` beside the magnitudes: that is rounding.
    """
    adv = np.asarray(adv, np.float64)
    if not len(adv):
        return adv
    spread = adv.std()
    return np.zeros_like(adv) if spread <= floor * max(1.0, np.abs(adv).max()) else (adv - adv.mean()) / spread


def explained_variance(value, target) -> float:
    """1 - Var(target - value) / Var(target); 0 where the target does not vary."""
    value, target = np.asarray(value, np.float64), np.asarray(target, np.float64)
    variance = target.var() if len(target) else 0.0
    return float(1.0 - (target - value).var() / variance) if variance > 1e-12 else 0.0
