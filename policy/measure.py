"""Training metrics: pure functions of numpy arrays over the action tokens of one optimizer step, under the names that the field uses."""

from __future__ import annotations

import collections
import math

import numpy as np

from policy.advantage import explained_variance
from policy.batch import CODE, PLAN


def policy(a: dict[str, np.ndarray], *, low: float, high: float) -> dict[str, float]:
    """a: float [M] arrays logp, old_logp, rollout_logp, adv, loss, weight (of the sampler's correction), kept (0 or 1)."""
    d = np.clip(a["logp"] - a["old_logp"], -20, 20).astype(np.float64)
    ratio = np.exp(d)
    out = {
        "pg_loss": float(a["loss"].mean()),
        "pg_clipfrac_low": float(((ratio < 1 - low) & (a["adv"] < 0)).mean()),
        "pg_clipfrac_high": float(((ratio > 1 + high) & (a["adv"] > 0)).mean()),
        "ppo_kl": float(-d.mean()),
        "approx_kl_k3": float((ratio - 1 - d).mean()),
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "ratio_p99": float(np.quantile(ratio, 0.99)),
        "ess": float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
        "tis_weight_mean": float(a["weight"].mean()),
        "tis_weight_max": float(a["weight"].max()),
        "mrs_rejected": float(1 - a["kept"].mean()),
    }
    return out | mismatch(a["old_logp"], a["rollout_logp"])


def mismatch(old_logp: np.ndarray, rollout_logp: np.ndarray) -> dict[str, float]:
    """How far the sampler's log-probabilities are from the trainer's for the same weights; nothing where there are none."""
    d = (rollout_logp - old_logp).astype(np.float64)
    d = d[np.isfinite(d)]
    if not len(d):
        return {}
    return {
        "train_rollout_logprob_abs_diff_mean": float(np.abs(d).mean()),
        "train_rollout_logprob_abs_diff_max": float(np.abs(d).max()),
        "kl_sample_train_v1": float(d.mean()),
        "kl_sample_train_v2": float(0.5 * (d**2).mean()),
    }


def entropy(a: dict[str, np.ndarray]) -> dict[str, float]:
    """a: entropy float [K] of sampled action tokens; entropy_kind int [K] of OTHER, PLAN, CODE (policy/batch.py) where known."""
    out = {"entropy": float(a["entropy"].mean())}
    for name, kind in (("plan", PLAN), ("code", CODE)):
        chosen = a["entropy_kind"] == kind if "entropy_kind" in a else np.zeros(0, bool)
        if chosen.any():
            out[f"entropy_{name}"] = float(a["entropy"][chosen].mean())
    return out


def critic(a: dict[str, np.ndarray], *, clip: float | None) -> dict[str, float]:
    """a: float [M] arrays v, v_old, ret (lambda target), mc (Monte-Carlo return), loss, where (0..1, place in the episode); task int [M];
    bool [M] arrays last, and prompt, plan, code: the state is the end of it."""
    out = {
        "value_loss": float(a["loss"].mean()),
        "vf_clipfrac": 0.0 if clip is None else float((np.abs(a["v"] - a["v_old"]) > clip).mean()),
        "explained_var": explained_variance(a["v"], a["ret"]),
        "value_first": float(a["v"][a["prompt"].astype(bool)].mean()),
        "value_last": float(a["v"][a["last"].astype(bool)].mean()),
        "returns_mean": float(a["ret"].mean()),
        "returns_std": float(a["ret"].std()),
    }
    places = {"": np.ones(len(a["v"]), bool)} | {f"_{name}": a[name].astype(bool) for name in ("prompt", "plan", "code")}
    for name, at in places.items():
        if at.sum() > 1:
            out[f"explained_var_mc{name}"] = explained_variance(a["v"][at], a["mc"][at])
            out[f"explained_var_mc{name}_within_task"] = explained_within(a["v"][at], a["mc"][at], a["task"][at])
    decile = np.minimum((a["where"] * 10).astype(int), 9)
    for i in range(10):
        if (decile == i).sum() > 1:
            out[f"explained_var_mc_decile_{i}"] = explained_variance(a["v"][decile == i], a["mc"][decile == i])
    return out


def explained_within(value, target, group) -> float:
    """Explained variance of what is left of value and target [M] when the mean of the group [M] is taken from each.

    A critic that knows only how hard a task is scores 0 here, however much it explains over all.
    """
    _, index = np.unique(group, return_inverse=True)
    index = index.reshape(-1)
    centred = lambda x: x - (np.bincount(index, x) / np.bincount(index))[index]
    return explained_variance(centred(np.asarray(value, np.float64)), centred(np.asarray(target, np.float64)))


def data(rows, left_out: int) -> dict[str, float]:
    """Of the rows that a fit trains on."""
    reward = np.array([r.reward for r in rows if not math.isnan(r.reward)])
    actions = np.array([r.actions for r in rows])
    turns = np.array([len(np.unique(r.turn)) for r in rows])
    out = {
        "episodes": float(len(rows)),
        "episodes_left_out": float(left_out),
        "response_tokens_mean": float(actions.mean()),
        "response_tokens_max": float(actions.max()),
        "other_tokens_mean": float(np.mean([len(r) - r.actions for r in rows])),
        "turns_mean": float(turns.mean()),
        "turns_min": float(turns.min()),
        "turns_max": float(turns.max()),
    }
    if len(reward):
        out |= {
            "reward_mean": float(reward.mean()),
            "reward_std": float(reward.std()),
            "reward_max": float(reward.max()),
            "reward_min": float(reward.min()),
        }
    return out | {f"stop_{name}": count / len(rows) for name, count in collections.Counter(r.stop for r in rows).items()}


def spread(name: str, values: np.ndarray) -> dict[str, float]:
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_std": float(values.std()),
        f"{name}_min": float(values.min()),
        f"{name}_max": float(values.max()),
    }
