import numpy as np
import pytest

from policy import advantage

V = [0.5, 0.4, 0.6, 0.7, 0.8, 0.9]


def outcome(n, r=1.0):
    return advantage.rewards(n, r)


def loop(reward, value, gamma, lam):
    out, after, following = np.zeros(len(value)), 0.0, 0.0
    for t in reversed(range(len(value))):
        following = reward[t] + gamma * after - value[t] + gamma * lam * following
        out[t], after = following, value[t]
    return out


def test_golden_vector_of_six_action_tokens_in_two_turns():
    # mask 1110000111, reward 1 at the end, gamma 1, lambda .95: the four observation tokens are simply not there
    adv, ret = advantage.token_credit(outcome(6), V, gamma=1.0, lam=0.95, lam_critic=0.95)
    assert np.allclose(adv, [0.4248, 0.5524, 0.3710, 0.2853, 0.1950, 0.1000], atol=5e-5)
    assert np.allclose(ret, adv + V)


@pytest.mark.parametrize("count", [1, 2, 1000, 131072])
def test_scan_equals_the_plain_loop(count):
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=count), rng.normal(size=count)
    for gamma, lam in ((1.0, 0.95), (0.99, 0.9), (1.0, 1.0), (1.0, 0.0)):
        wanted = loop(reward, value, gamma, lam)
        assert np.abs(advantage.gae(reward, value, gamma=gamma, lam=lam) - wanted).max() <= 1e-12 * max(1, np.abs(wanted).max())


def test_limits_of_lambda_and_exact_values():
    rng = np.random.default_rng(1)
    reward, value = rng.normal(size=9), rng.normal(size=9)
    assert np.allclose(advantage.gae(reward, value, lam=1.0), np.cumsum(reward[::-1])[::-1] - value)
    assert np.allclose(advantage.gae(reward, value, gamma=0.9, lam=0.0), reward + 0.9 * np.append(value[1:], 0) - value)
    truth = advantage.returns_to_go(reward)
    assert np.allclose(advantage.gae(reward, truth, lam=0.3), 0)
    assert np.isclose(advantage.gae(outcome(5, 3.0), np.arange(5.0), lam=0.9)[-1], 3.0 - 4.0)
    assert np.isclose(advantage.gae(outcome(5), np.zeros(5), gamma=0.5, bootstrap=2.0)[-1], 1.0 + 0.5 * 2.0)


def test_turn_unit_is_token_unit_when_turns_have_one_token():
    a = advantage.turn_credit(outcome(6), V, np.arange(6), gamma=0.9, lam=0.8, lam_critic=1.0)
    b = advantage.token_credit(outcome(6), V, gamma=0.9, lam=0.8, lam_critic=1.0)
    assert np.allclose(a, b)


def test_turn_unit_applies_lambda_once_a_turn_however_long_it_is():
    for length in (1, 3, 500):
        turn = np.repeat([0, 1], [length, 2])
        value = np.where(turn == 0, 0.5, 0.2)
        value[1:length] = 99.0  # values inside a turn do not count
        adv, ret = advantage.turn_credit(outcome(len(turn)), value, turn, gamma=1.0, lam=0.9, lam_critic=1.0)
        assert np.allclose(adv[:length], (0.2 - 0.5) + 0.9 * (1 - 0.2)) and np.allclose(adv[length:], 0.8)
        assert np.allclose(ret, 1.0)


def test_reward_falls_on_the_last_action_token_and_penalties_everywhere():
    assert advantage.rewards(3, 2.0).tolist() == [0, 0, 2]
    assert advantage.rewards(3, 2.0, np.array([0.1, 0.2, 0.3])).tolist() == [-0.1, -0.2, 1.7]


def test_length_adaptive_lambda():
    assert np.isclose(advantage.adaptive_lambda(1000, 0.05), 0.98)
    assert advantage.adaptive_lambda(20, 0.05) == 0.0 == advantage.adaptive_lambda(3, 0.05)


def test_leave_one_out_baseline():
    assert np.allclose(advantage.trloo([1, 0, 0], ["a"] * 3), [1, -0.5, -0.5])
    mixed = advantage.trloo([1, 5, 0, 0], ["a", "b", "a", "a"])
    assert np.allclose(mixed, [1, 5, -0.5, -0.5])  # a group of one: A = G
    assert np.isclose(mixed[[0, 2, 3]].sum(), 0)
    rng = np.random.default_rng(2)
    returns, groups, order = rng.normal(size=12), np.arange(12) % 3, rng.permutation(12)
    assert np.allclose(advantage.trloo(returns, groups)[order], advantage.trloo(returns[order], groups[order]))
    mean = np.array([returns[groups == g].mean() for g in groups])
    assert np.allclose(returns - mean, advantage.trloo(returns, groups) * 3 / 4)  # GRPO's mean baseline = (N - 1) / N of it


def test_whitening_has_mean_zero_and_variance_one_or_gives_zeros():
    w = advantage.whiten(np.random.default_rng(3).normal(3, 5, 1000))
    assert abs(w.mean()) < 1e-6 and abs(w.var() - 1) < 1e-6
    assert advantage.whiten(np.full(5, 2.0)).tolist() == [0] * 5 and advantage.whiten(np.array([7.0])).tolist() == [0]


def test_explained_variance():
    r = np.array([1.0, -1.0, 2.0, -2.0])
    assert advantage.explained_variance(r, r) == 1
    assert advantage.explained_variance(np.full(4, 3.0), r) == 0
    assert np.isclose(advantage.explained_variance(-r, r), -3)
    assert advantage.explained_variance(r, np.ones(4)) == 0
