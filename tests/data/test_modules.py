from __future__ import annotations

import collections
import warnings
from random import Random

import pytest

import data.modules
from data.modules import transformer_seeds
from data.records import Task
from data.regimes import REGIME_NAMES
from data.seeds import Unfit, run_source
from data.trace import trace


@pytest.fixture(scope="module")
def seeds():
    return transformer_seeds()


def test_more_than_25_modules_of_transformers_are_found_each_unlike_the_others(seeds):
    count = collections.Counter(seed.family.removeprefix("transformers.") for seed in seeds.values())
    assert len(seeds) >= 60 and set(count) == {"attention", "mlp", "norm", "rotary", "moe", "layer"}
    assert count["attention"] >= 15 and count["mlp"] >= 8 and count["norm"] >= 4
    for name in ("LlamaDecoderLayer", "GemmaRMSNorm", "GPT2Attention", "T5DenseGatedActDense"):
        assert name in seeds


@pytest.mark.slow
def test_every_module_is_a_task_that_runs_and_repeats(seeds):
    import torch

    holds = {
        "attention": ("bmm", "matmul", "softmax"),
        "mlp": ("addmm", "mm"),
        "norm": ("rsqrt", "layer_norm", "var"),
        "rotary": ("cat",),
        "moe": ("topk", "max"),
    }
    for seed in seeds.values():
        for sdpa in {False, seed.sdpa}:
            source = seed.source((2, 24, 96), sdpa=sdpa)
            task = Task(source=source, origin="synthetic", operators=trace(source).operators)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                first, again, other = (run_source(source, s)[0] for s in (1, 1, 2))
            assert torch.equal(first, again) and torch.isfinite(first).all() and not torch.equal(first, other), source
            kinds = holds.get(seed.family.partition(".")[2], ("addmm", "mm"))
            assert any(kind in op for op in task.operators for kind in kinds), (seed.name, task.operators)


def test_shapes_follow_the_regimes_and_others_are_refused(seeds):
    seed = seeds["LlamaMLP"] if "LlamaMLP" in seeds else next(s for s in seeds.values() if s.family == "transformers.mlp")
    shapes = {regime: seed.shape(Random(0), regime, 1 << 18) for regime in REGIME_NAMES}
    assert len(set(shapes.values())) >= 8
    for shape in shapes.values():
        assert trace(seed.source(shape)).operators
    with pytest.raises(Unfit, match="wanted \\(batch, length, width\\)"):
        seed.source((8, 30))


def test_a_class_that_cannot_be_built_is_named_with_the_error_and_the_rest_goes_on(caplog, monkeypatch):
    import transformers.models.llama.modeling_llama as llama

    class BrokenMLP(llama.LlamaMLP):
        def forward(self, x):
            raise RuntimeError("no such luck")

    BrokenMLP.__module__ = llama.__name__
    monkeypatch.setattr(data.modules, "_candidates", lambda: iter([(llama.__name__, BrokenMLP), (llama.__name__, llama.LlamaMLP)]))
    monkeypatch.setattr(llama, "BrokenMLP", BrokenMLP, raising=False)
    with caplog.at_level("INFO"):
        assert list(transformer_seeds.__wrapped__()) == ["LlamaMLP"]
    assert "module BrokenMLP: left out: no such luck" in caplog.text
