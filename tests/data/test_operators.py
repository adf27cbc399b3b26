from __future__ import annotations

import dataclasses
from random import Random

import pytest

from data.operators import CATALOGUE, FAMILIES, Spelling
from data.synthesis import valid_operators
from data.trace import fingerprint, trace
from data.values import Values
from data.writing import Step, write_source

TINY = [
    "relu",
    "leaky_relu",
    "sigmoid",
    "tanh",
    "silu",
    "gelu",
    "gelu_tanh",
    "elu",
    "softplus",
    "hardtanh",
    "hardswish",
    "abs",
    "neg",
    "square",
    "sqrt_abs",
    "exp",
    "sin",
    "cos",
    "add_scalar",
    "sub_scalar",
    "mul_scalar",
    "div_scalar",
    "add",
    "sub",
    "mul",
    "maximum",
    "sum",
    "mean",
    "amax",
    "amin",
    "softmax",
    "log_softmax",
    "layer_norm",
    "layer_norm_affine",
    "rms_norm",
    "l2_normalize",
    "mean_square",
]


def test_the_catalogue_holds_the_tiny_set_in_known_families():
    assert set(TINY) <= set(CATALOGUE)
    assert all(name == operator.name and operator.family in FAMILIES for name, operator in CATALOGUE.items())


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_spelling_traces_to_the_same_graph(name):
    operator = CATALOGUE[name]
    assert len(operator.spellings) >= 2
    rng = Random(0)
    args = operator.arguments(rng, (16, 32))
    for kind in operator.operand or (None,):
        graphs = []
        for spelling in operator.spellings:
            step = Step(operator=operator, spelling=spelling, args=args, operand=kind, shape=(16, 32))
            graphs.append(trace(write_source(rng, (step,), (16, 32))))
        assert {graph.operators for graph in graphs} == {operator.traced}
        if name != "mul_scalar":
            assert len({repr([f[:1] + f[4:] for f in fingerprint(g)[:-1]]) for g in graphs}) == 1
        assert graphs[0].nodes[graphs[0].outputs[0]].shape == operator.shape((16, 32), args)


@pytest.mark.parametrize("name", CATALOGUE)
def test_constants_reach_the_trace(name):
    operator = CATALOGUE[name]
    seen = set()
    for seed in range(12):
        rng = Random(seed)
        args = operator.arguments(rng, (16, 32))
        step = Step(operator=operator, spelling=operator.spellings[0], args=args, operand=(operator.operand or (None,))[0], shape=(16, 32))
        graph = trace(write_source(rng, (step,), (16, 32)))
        given = {float(v) for v in args.values() if isinstance(v, float)}
        traced = {float(v) for n in graph.nodes for v in n.args.values() if isinstance(v, (int, float))}
        assert all(any(abs(g - t) < 1e-9 for t in traced) for g in given)
        seen.add(repr(sorted(args.items())))
    assert len(seen) > 1 or not args or set(args) == {"row"}


def test_a_broken_record_is_reported_by_name_and_the_rest_goes_on(caplog):
    good, bad = CATALOGUE["relu"], CATALOGUE["abs"]
    wrong_label = dataclasses.replace(bad, name="mislabelled", traced=("neg",))
    does_not_run = dataclasses.replace(bad, name="crashing", spellings=(Spelling(call="torch.no_such({x})"),))
    bad_template = dataclasses.replace(bad, name="untemplated", spellings=(Spelling(call="{x} + {nothing}"),))
    assert valid_operators([wrong_label, good, does_not_run, bad_template]) == [good]
    for name in ("mislabelled", "crashing", "untemplated"):
        assert f"operator {name}: left out" in caplog.text


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("relu", Values(lo=0.0, hi=1.0)),
        ("abs", Values(lo=0.0, hi=1.0)),
        ("exp", Values(lo=0.0, hi=200.0)),
        ("sum", Values(lo=0.0, hi=1.0, marks=frozenset({"sum"}))),
        ("mean", Values(marks=frozenset({"sum", "square"}))),
        ("mean_square", Values(marks=frozenset({"square"}))),
        ("amin", Values(lo=0.0, marks=frozenset({"low"}))),
        ("amax", Values(hi=1.0, marks=frozenset({"high"}))),
        ("layer_norm", Values(marks=frozenset({"sum", "square"}))),
        ("sigmoid", Values(lo=0.0, hi=1e4)),
        ("softmax", Values(lo=0.0, hi=0.001)),
        ("square", Values(lo=0.0, hi=1e5)),
    ],
)
def test_operators_that_would_do_nothing_overflow_or_give_a_constant_are_refused(name, before):
    operator = CATALOGUE[name]
    args = operator.arguments(Random(0), (16, 64))
    assert operator.values(before, args, (16, 64)) is None
    assert operator.values(Values(), args, (16, 64)) is not None
