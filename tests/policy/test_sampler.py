import asyncio
import collections

import numpy as np
import pytest
import torch

from policy import decode, model
from policy.sampler import HfSampler
from tests.policy.conftest import make

Segment = collections.namedtuple("Segment", "role text ids")


def ids_of(seed, count):
    return tuple(np.random.default_rng(seed).integers(3, 290, count).tolist())


def recompute(lm, prompt, action, temperature):
    """fp32 log-probs of `action` after `prompt` by one plain uncached forward over full logits."""
    with torch.no_grad():
        logits = lm(input_ids=torch.tensor([[*prompt, *action]]), use_cache=False).logits[0].float() / temperature
    at = torch.arange(len(prompt) - 1, len(prompt) + len(action) - 1)
    return torch.log_softmax(logits, -1)[at, torch.tensor(action)]


def sample(sampler, requests):
    async def main():
        return await asyncio.gather(
            *[sampler.generate([Segment("user", "", ids)], max_new_tokens=new, seed=seed) for ids, new, seed in requests]
        )

    return asyncio.run(main())


def error(lm, requests, completions, temperature):
    return max(
        (recompute(lm, ids, done.ids, temperature) - torch.tensor(done.logprobs)).abs().max().item()
        for (ids, _, _), done in zip(requests, completions, strict=True)
    )


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_equal_a_plain_forward_on_two_turns_with_prefix_reuse(small, temperature):
    sampler = HfSampler(small, max_batch=7, temperature=temperature)
    first = [(ids_of(1, 9) + ids_of(10 + i, 5 + 3 * i), 5 + 7 * i, i) for i in range(7)]
    done = sample(sampler, first)
    assert [len(d.ids) for d, (_, new, _) in zip(done, first, strict=True) if d.finish_reason == "length"] == [
        new for d, (_, new, _) in zip(done, first, strict=True) if d.finish_reason == "length"
    ]
    assert error(sampler.model, first, done, temperature) <= 1e-5
    before = sampler.decoder.counts["reused"]
    second = [(ids + d.ids + ids_of(20 + i, 11), 6, 100 + i) for i, ((ids, _, _), d) in enumerate(zip(first, done, strict=True))]
    assert error(sampler.model, second, sample(sampler, second), temperature) <= 1e-5
    known = sum(len(ids) + len(d.ids) - 1 for (ids, _, _), d in zip(first, done, strict=True))  # all but each last sampled token
    assert sampler.decoder.counts["reused"] == before + known
    sampler.close()


def test_a_request_draws_the_same_tokens_whatever_shares_its_batch(small):
    request = (ids_of(3, 12), 30, 77)
    alone = sample(HfSampler(small, max_batch=1), [request])[0]
    crowd = [(ids_of(40 + i, 4 + i), 3 + 2 * i, i) for i in range(9)]
    crowded = sample(HfSampler(small, max_batch=5), [*crowd, request])[-1]
    assert crowded.ids == alone.ids and len(alone.ids) > 3
    assert np.allclose(crowded.logprobs, alone.logprobs, atol=1e-5)
    assert sample(HfSampler(small, max_batch=1), [request[:2] + (78,)])[0].ids != alone.ids


def test_each_token_is_where_its_own_draw_falls_in_the_cumulative_distribution(small):
    lm, _, _ = model.load(small)
    decoder = decode.Decoder(lm, stop_ids=(), temperature=0.7, slots=2)
    row = decoder.submit(ids_of(2, 7), max_new_tokens=20, seed=5)
    while decoder.waiting or decoder.active:
        decoder.step()
    with torch.no_grad():
        p = torch.softmax(lm(input_ids=torch.tensor([row.ids]), use_cache=False).logits[0, row.prompt - 1 : -1].double() / 0.7, -1)
    upper = p.cumsum(-1).gather(-1, torch.tensor(row.sampled)[:, None])[:, 0].numpy()
    lower = upper - p.gather(-1, torch.tensor(row.sampled)[:, None])[:, 0].numpy()
    assert (lower - 1e-5 <= row.draws).all() and (row.draws <= upper + 1e-5).all()
    assert np.allclose(row.draws, np.random.Generator(np.random.PCG64(5)).random(20)) and np.abs(np.diff(row.draws)).min() > 0


def test_reload_forgets_cached_keys_and_values(small, tokenizer, tmp_path):
    other = make(tokenizer, tmp_path / "other", seed=5)
    sampler = HfSampler(small, max_batch=2)
    request = [(ids_of(6, 40), 8, 1)]
    version = sample(sampler, request)[0].policy_version
    sampler.reload(other)
    done = sample(sampler, request)
    assert done[0].policy_version != version
    assert error(sampler.model, request, done, 1.0) <= 1e-5
    stale = HfSampler(small, max_batch=2)
    sample(stale, request)
    stale.model.load_state_dict(sampler.model.state_dict())  # the mistake: weights changed, store kept
    assert error(stale.model, request, sample(stale, request), 1.0) > 0.01


def test_sampled_frequencies_follow_the_tempered_softmax(small):
    lm, _, _ = model.load(small)
    prompt, count = ids_of(8, 6), 2000
    decoder = decode.Decoder(lm, stop_ids=(), temperature=0.7, slots=8)
    rows = [decoder.submit(prompt, max_new_tokens=1, seed=seed) for seed in range(count)]
    while decoder.waiting or decoder.active:
        decoder.step()
    with torch.no_grad():
        expected = torch.softmax(lm(input_ids=torch.tensor([prompt])).logits[0, -1] / 0.7, -1).numpy() * count
    observed = np.bincount([row.sampled[0] for row in rows], minlength=len(expected))
    big = expected >= 5
    observed, expected = np.append(observed[big], observed[~big].sum()), np.append(expected[big], expected[~big].sum())
    statistic, freedom = ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum(), len(expected) - 1
    assert freedom >= 5 and statistic < freedom + 5 * np.sqrt(2 * freedom)


def test_finish_reason_tells_a_sampled_end_from_a_limit(small):
    lm, _, _ = model.load(small)
    decoder = decode.Decoder(lm, stop_ids=range(100), slots=2, context=20)
    rows = [decoder.submit(ids_of(i, 10), max_new_tokens=50, seed=i) for i in range(20)]
    while decoder.waiting or decoder.active:
        decoder.step()
    assert {row.finish_reason for row in rows} == {"stop", "length"}
    assert all((row.sampled[-1] < 100) == (row.finish_reason == "stop") and len(row.ids) <= 20 for row in rows)


def test_a_cancelled_request_leaves_and_the_others_finish(small):
    sampler = HfSampler(small, max_batch=2)

    async def main():
        calls = [asyncio.create_task(sampler.generate([Segment("user", "", ids_of(i, 5))], max_new_tokens=200, seed=i)) for i in range(3)]
        await asyncio.sleep(0.05)
        calls[0].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    first, *rest = asyncio.run(main())
    assert isinstance(first, asyncio.CancelledError) or first.finish_reason
    assert all(done.finish_reason for done in rest) and not sampler.decoder.active
    assert sample(sampler, [(ids_of(9, 5), 4, 1)])[0].finish_reason


def test_bad_requests_are_refused(small):
    sampler = HfSampler(small, max_batch=2)
    with pytest.raises(ValueError, match="without ids"):
        asyncio.run(sampler.generate([Segment("user", "hello", None)], max_new_tokens=4, seed=0))
    with pytest.raises(ValueError, match="fewer than the context"):
        sample(sampler, [(ids_of(1, 512), 4, 0)])
    with pytest.raises(ValueError, match="temperature"):
        HfSampler(small, temperature=0.0)
