from __future__ import annotations

import collections
import dataclasses
import warnings
from random import Random

import pytest

import data.seeds
from data.records import Task
from data.regimes import LAYOUTS, REGIME_NAMES
from data.seeds import EXAMPLES, GENERATORS, Callee, Unfit, declared, torch_seeds
from data.trace import trace
from data.writing import write_source

FAMILIES = {
    "activation",
    "attention",
    "convolution",
    "distance",
    "index",
    "layout",
    "loss",
    "matmul",
    "norm",
    "padding",
    "pointwise",
    "pooling",
    "recurrent",
    "reduction",
    "resample",
    "scan",
    "softmax",
    "sort",
    "transposed_convolution",
}


@pytest.fixture(scope="module")
def seeds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch_seeds()


def source_of(seed, rng: Random, regime: str, elements: int, attempts: int = 8) -> str:
    """A task of one operator in a regime. Raises Unfit where none of the drawn shapes fits."""
    for _ in range(attempts):
        shape = LAYOUTS[seed.layout][regime](rng, elements)
        try:
            source = write_source(rng, (seed.step(rng, shape, regime),), shape)
            trace(source)
            return source
        except ValueError:
            continue
    raise Unfit(f"{seed.name} in {regime}")


def run(source: str, seed: int):
    import torch

    namespace: dict = {}
    exec(source, namespace)
    torch.manual_seed(3)
    model = namespace["Model"](*namespace["get_init_inputs"]()).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        return model(*namespace["get_inputs"]())


def test_more_than_150_operators_of_torch_are_found_in_every_family(seeds):
    count = collections.Counter(seed.family.removeprefix("torch.") for seed in seeds.values())
    assert len(seeds) >= 200 and set(count) == FAMILIES
    assert count["convolution"] == count["transposed_convolution"] == 3 and count["loss"] >= 15 and count["pooling"] >= 15
    for name in (
        "cumsum",
        "layer_norm",
        "max_pool2d",
        "scaled_dot_product_attention",
        "cross_entropy",
        "gather",
        "topk",
        "roll",
        "bmm",
        "pixel_shuffle",
    ):
        assert name in seeds
    many = [seed.name for seed in seeds.values() if len(seed.spellings) > 1]
    assert len(many) > 60  # functional, module and torch spellings of one operator are one seed


@pytest.mark.slow
def test_every_seed_is_a_task_that_runs_repeats_depends_on_its_input_and_traces_to_what_it_declares(seeds):
    import torch

    for seed in seeds.values():
        for at, spelling in enumerate(seed.spellings):
            one = dataclasses.replace(seed, spellings=(spelling,))
            try:
                source = source_of(one, Random(at), "batched", 1 << 13)
            except Unfit:
                source = source_of(one, Random(at), "tall", 1 << 13)
            task = Task(source=source, origin="synthetic", operators=trace(source).operators)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                first, again, other = run(source, 1), run(source, 1), run(source, 2)
            assert torch.equal(first, again) and torch.isfinite(first).all() and not torch.equal(first, other), source
            name = declared(spelling.name)
            alike = (name, f"native_{name}", f"{name}_forward", f"{name}_with_indices", f"a{name}")
            assert task.operators and (name is None or set(alike) & set(task.operators)), source


def test_every_family_meets_every_regime_and_every_seed_most_of_them(seeds):
    met = collections.defaultdict(set)
    for seed in seeds.values():
        fits = 0
        for regime in REGIME_NAMES:
            try:
                source_of(seed, Random(f"{seed.name} {regime}"), regime, 1 << 14)
            except Unfit:
                continue
            met[seed.family].add(regime)
            fits += 1
        assert fits >= 6, (seed.name, fits)
    assert len(REGIME_NAMES) == 9
    for family, regimes in met.items():
        assert len(regimes) >= 8, (family, set(REGIME_NAMES) - regimes)


def test_shapes_differ_in_what_the_regime_is_named_for():
    rng, n = Random(0), 1 << 20
    rows, image, matrix, sequence = (LAYOUTS[name] for name in ("rows", "image2", "matrix", "sequence"))
    assert rows["many_short_rows"](rng, n)[-1] <= 96 < 4096 < rows["few_long_rows"](rng, n)[-1]
    assert len(rows["outer"](rng, n)) == 3
    assert image["tall"](rng, n)[2] > 4 * image["tall"](rng, n)[3] and image["wide"](rng, n)[3] > 4 * image["wide"](rng, n)[2]
    assert image["outer"](rng, n)[1] >= 128 > 16 >= image["few_long_rows"](rng, n)[1]
    assert all(size % 2 for size in image["odd"](rng, n)[1:])
    assert matrix["few_long_rows"](rng, n)[0] <= 16 and matrix["outer"](rng, n)[1] <= 16
    assert sequence["batched"](rng, n)[0] >= 16 and sequence["few_long_rows"](rng, n)[0] == 1
    assert all(len(LAYOUTS[layout]["square"](rng, n)) == len(shape) for layout, shape in EXAMPLES.items())


def test_dimension_is_the_inner_or_the_outer_one(seeds):
    texts = {regime: source_of(seeds["cumsum"], Random(1), regime, 1 << 13) for regime in ("batched", "outer")}
    dims = {regime: next(n.args["dim"] for n in trace(text).nodes if n.op == "cumsum") for regime, text in texts.items()}
    assert dims == {"batched": 2, "outer": 1}


def test_a_callable_whose_generators_yield_nothing_is_named_with_the_error_and_the_rest_goes_on(caplog, monkeypatch):
    fields = {"family": "pointwise", "layout": "rows", "optional": (), "tensors": ("input",)}
    good = Callee(path="torch.sin", name="sin", required=("input",), **fields)
    crash = Callee(path="torch.no_such_function", name="no_such_function", required=("input",), **fields)
    unknown = Callee(path="torch.sin", name="odd_one", required=("input", "moon_phase"), **fields)
    liar = Callee(path="torch.cos", name="tan", required=("input",), **fields)
    monkeypatch.setattr(data.seeds, "torch_callables", lambda: iter([crash, unknown, liar, good]))
    with caplog.at_level("INFO"):
        assert list(torch_seeds.__wrapped__()) == ["sin"]
    assert "torch.no_such_function: left out: module 'torch' has no attribute" in caplog.text
    assert "the parameter moon_phase" in caplog.text and "wanted tan in it" in caplog.text
    assert "moon_phase" not in GENERATORS


def test_one_operator_is_written_as_function_module_and_method(seeds):
    written = {name: {source_of(seeds[name], Random(at), "tall", 1 << 12) for at in range(24)} for name in ("relu", "cumsum", "softmax")}
    for name, marks in (
        ("relu", ("F.relu(", "torch.relu(", "x.relu(", "nn.ReLU()")),
        ("cumsum", ("torch.cumsum(x", "x.cumsum(")),
        ("softmax", ("nn.Softmax(",)),
    ):
        for mark in marks:
            assert any(mark in text for text in written[name]), (name, mark)
        assert len({trace(text).operators for text in written[name]}) == 1
