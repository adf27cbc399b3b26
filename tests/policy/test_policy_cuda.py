"""In a process of its own: DeepSpeed takes one type of device a process."""

import numpy as np
import pytest
import torch

from policy import batch, model, train
from policy.sampler import HfSampler
from tests.policy.test_sampler import ids_of, recompute, sample
from tests.policy.test_train import PPO, run
from tests.policy.toys import several

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.3)])
def test_sampler_logprobs_equal_a_plain_forward(small, dtype, bound):
    sampler = HfSampler(small, max_batch=8, device="cuda", dtype=dtype, temperature=0.7)
    requests = [(ids_of(1, 9) + ids_of(10 + i, 5 + 3 * i), 5 + 7 * i, i) for i in range(12)]
    done = sample(sampler, requests)
    second = [(ids + d.ids + ids_of(20 + i, 11), 6, 100 + i) for i, ((ids, _, _), d) in enumerate(zip(requests, done, strict=True))]
    lm, _, _ = model.load(small)
    if dtype == "bfloat16":
        lm = lm.to(torch.bfloat16).float()
    for group in ((requests, done), (second, sample(sampler, second))):
        for (ids, _, _), d in zip(*group, strict=True):
            assert (recompute(lm, ids, d.ids, 0.7) - torch.tensor(d.logprobs)).abs().max() <= bound


def test_first_update_has_ratio_one_and_micro_batches_change_nothing(small, tmp_path):
    whole = run(small, tmp_path / "whole", device="cuda", settings={"epochs": 2})
    split = run(small, tmp_path / "split", device="cuda", settings={"epochs": 2, "tokens": 40})
    assert whole[2][0]["ratio_max"] == whole[2][0]["ratio_min"] == 1.0
    for a, b in zip(whole[:2], split[:2], strict=True):
        assert np.mean([(a[k] - b[k]).abs().mean().item() for k in a]) < 1e-4


def test_bf16_training_computes_fp32_logprobs_and_learns(small, tmp_path):
    log = []
    settings = train.Settings(**PPO | {"method": "sft", "dtype": "bfloat16", "epochs": 20})
    train.fit(several(12), settings, policy=small, out=tmp_path / "p", log=log.append, device="cuda", work=tmp_path / "w")
    assert log[-1]["loss"] < 0.7 * log[0]["loss"]
    lm, _, _ = model.load(small, dtype=torch.bfloat16, device="cuda")
    b = batch.collate([batch.row(t) for t in several(4)], device="cuda")
    hidden = lm.model(input_ids=b.ids, position_ids=b.positions, use_cache=False, spans=b.spans).last_hidden_state[0, b.src]
    exact = torch.log_softmax(hidden.double() @ lm.lm_head.weight.double().T, -1).gather(-1, b.label[:, None])[:, 0]
    assert (model.Actor(lm)(b.ids, b.positions, b.src, b.label, b.spans) - exact).abs().max() <= 1e-4
