from __future__ import annotations

import collections
import hashlib
import math
import pathlib
import subprocess
import sys
import time
from random import Random

import pytest

from data.operators import CATALOGUE, FAMILIES
from data.similarity import normalise
from data.synthesis import PUBLISHED_MIX, REGIMES, compose, synthesize
from data.trace import fingerprint, trace

ROOT = pathlib.Path(__file__).parents[2]
MIX = {1: 0.2, 2: 0.3, 3: 0.2, 4: 0.2, 5: 0.1}
ALL = {"families": list(FAMILIES), "regimes": list(REGIMES), "max_elements": 1 << 18}


@pytest.fixture(scope="module")
def tasks():
    return synthesize(count=200, seed=5, mix=MIX, **ALL)


def test_the_label_is_what_the_code_does(tasks):
    for task in tasks:
        assert trace(task.source).operators == task.operators


def test_no_task_comes_twice_by_id_source_or_graph(tasks):
    assert (
        len({t.id for t in tasks}) == len({normalise(t.source) for t in tasks}) == len({fingerprint(trace(t.source)) for t in tasks}) == 200
    )


def test_the_same_seed_gives_the_same_tasks_in_another_process_and_another_seed_does_not(tasks):
    code = (
        "from data.synthesis import *; "
        f"print([t.id for t in synthesize(count=200, seed=5, mix={MIX}, families=list(FAMILIES), regimes=list(REGIMES), max_elements=1 << 18)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert eval(out) == [t.id for t in tasks]
    assert {t.id for t in synthesize(count=20, seed=6, mix=MIX, **ALL)}.isdisjoint({t.id for t in tasks})


def test_the_mix_is_met_exactly():
    operators = {"families": ["activation"], "regimes": ["square"], "max_elements": 1 << 16, "surface": "plain"}
    made = synthesize(count=50, seed=0, mix={1: 0.2, 3: 0.8}, **operators)
    assert collections.Counter(len(t.operators) for t in made) == {1: 10, 3: 40}
    assert math.isclose(sum(PUBLISHED_MIX.values()), 0.992, abs_tol=0.01)


def test_every_regime_is_used_evenly_and_named(tasks):
    counts = collections.Counter(t.regime for t in tasks)
    assert set(counts) == set(REGIMES) and len(REGIMES) >= 6
    assert max(counts.values()) - min(counts.values()) <= 1


def test_shapes_follow_their_regime_and_stay_within_the_bounds(tasks):
    for task in tasks:
        shape = next(n.shape for n in trace(task.source).nodes if n.kind == "input")
        elements, row = math.prod(shape), shape[-1]
        assert (1 << 16) <= elements <= (1 << 18)
        rows = elements // row
        assert {
            "many_short_rows": row <= 96,
            "few_long_rows": rows <= 16,
            "square": rows == row,
            "odd": row % 2 == 1 and rows % 2 == 1,
            "tall": 128 <= row <= 256 and rows > row,
            "wide": row >= 2048 and rows < row,
            "batched": len(shape) == 3,
        }[task.regime], (task.regime, shape)


def test_families_limit_the_operators():
    made = synthesize(count=20, seed=0, mix={1: 1}, families=["reduction"], regimes=["batched"], max_elements=1 << 18)
    assert {o for t in made for o in t.operators} <= {"sum", "mean", "amax", "amin", "pow"}


def test_compositions_hold_no_step_that_does_nothing_or_leaves_a_constant():
    rng, operators = Random(0), list(CATALOGUE.values())
    pairs = set()
    for _ in range(3000):
        steps = compose(rng, operators, 2, (64, 256))
        if steps:
            pairs.add((steps[0].operator.name, steps[1].operator.name))
    dead = {("relu", "relu"), ("relu", "abs"), ("sigmoid", "relu"), ("softmax", "sum"), ("layer_norm", "mean"), ("rms_norm", "mean_square")}
    dead |= {
        ("relu", "amin"),
        ("sum", "tanh"),
        ("square", "abs"),
        ("neg", "neg"),
        ("layer_norm", "layer_norm"),
        ("relu6", "amin"),
        ("sum", "exp"),
    }
    assert len(pairs) > 500 and not pairs & dead


def test_rows_are_the_inputs_rows_and_never_the_batch_that_a_reduction_left(tasks):
    for task in tasks:
        graph = trace(task.source)
        rank = len(graph.inputs[0].shape)
        dims = [n.args["dim"] for n in graph.nodes if "dim" in n.args]
        assert all(dim in (rank - 1, [rank - 1]) for dim in dims), task.source


def test_avoided_signatures_are_never_made():
    options = {"mix": {1: 1}, "families": ["activation"], "regimes": ["square"], "max_elements": 1 << 18}
    found = {t.operators for t in synthesize(count=20, seed=0, **options)}
    banned = sorted(found)[:4]
    again = {t.operators for t in synthesize(count=20, seed=0, avoid=banned, **options)}
    assert again and again.isdisjoint(banned)


def test_the_surface_varies_and_plain_is_plain(tasks):
    sources = [t.source for t in tasks]
    for spelling in (
        "F.",
        "torch.",
        "nn.",
        '"""',
        "nn.Parameter",
        "super(Model, self)",
        "from torch import nn",
        "torch.rand(",
        ": torch.Tensor",
    ):
        share = sum(spelling in s for s in sources) / len(sources)
        assert share > 0.01, spelling
    plain = synthesize(count=30, seed=5, mix=MIX, surface="plain", **ALL)
    assert not any('"""' in t.source or "super(Model" in t.source for t in plain)


def test_inputs_are_drawn_and_tasks_run_on_real_data_with_finite_varied_outputs(tasks):
    import torch

    torch.manual_seed(0)
    odd = []
    for task in tasks[:100]:
        namespace: dict = {}
        exec(task.source, namespace)
        model = namespace["Model"](*namespace["get_init_inputs"]()).eval()
        with torch.no_grad():
            first, second = model(*namespace["get_inputs"]()), model(*namespace["get_inputs"]())
        assert torch.isfinite(first).all(), task.source
        if float((first - second).abs().max()) <= 1e-4 * float(first.abs().max()):
            odd.append(task.operators)
    assert len(odd) <= 4, odd


def test_two_thousand_tasks_take_well_under_half_a_minute():
    start = time.process_time()
    assert len(synthesize(count=500, seed=9, mix=PUBLISHED_MIX, **ALL)) == 500
    assert time.process_time() - start < 7.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"families": ["convolution"]}, r"families: got \['convolution'\], wanted some of activation"),
        ({"regimes": ["round"]}, r"regimes: got \['round'\]"),
        ({"regimes": []}, r"regimes: got \[\]"),
        ({"mix": {6: 1.0}}, "mix: got {6: 1.0}"),
        ({"mix": {1: -1.0, 2: 2.0}}, "mix: got"),
        ({"mix": {"two": 1}}, "mix: got"),
        ({"surface": "wild"}, "surface: got 'wild'"),
        ({"max_elements": 10}, "min_elements: got 5"),
        (
            {"count": 100, "mix": {1: 1}, "families": ["softmax"], "regimes": ["few_long_rows"], "max_elements": 128},
            "count: got no new task",
        ),
    ],
)
def test_wrong_arguments_are_one_clear_line(changes, said):
    options = {"count": 2, "seed": 0, "mix": MIX, **ALL} | changes
    with pytest.raises(ValueError, match=said):
        synthesize(**options)


def test_the_tiny_preset_makes_the_tasks_that_it_always_made():
    made = synthesize(
        count=66,
        seed=1,
        mix={1: 0.05, 2: 0.4, 3: 0.35, 4: 0.15, 5: 0.05},
        families=["activation", "scalar", "reduction", "softmax"],
        regimes=["square", "many_short_rows", "few_long_rows", "tall", "wide"],
        min_elements=655360,
        max_elements=1048576,
        surface="plain",
    )
    assert hashlib.sha256(" ".join(t.id for t in made).encode()).hexdigest()[:16] == "38eff4c3e81d870f"
