from __future__ import annotations

import dataclasses
import gzip
import types

import pytest

from data.families import family_of
from data.kernelbench import FINGERPRINTS
from data.operators import FAMILIES
from data.records import Task
from data.selection import (
    Dropped,
    accept,
    by_rule,
    dedupe,
    family_split,
    fingerprints,
    pair_of,
    read_fingerprints,
    screen,
    signature_split,
    write_fingerprints,
)
from data.similarity import normalise, similarity, tree_tokens
from data.synthesis import REGIMES, synthesize
from data.trace import trace
from tests.data.examples import SOURCE

RELU = Task(source=SOURCE, origin="synthetic", operators=("relu", "mul"))


@pytest.fixture(scope="module")
def tasks():
    return synthesize(count=60, seed=1, mix={1: 0.4, 2: 0.4, 3: 0.2}, families=list(FAMILIES), regimes=list(REGIMES), max_elements=1 << 16)


def measurement(**changes):
    fields = {"eager_ms": 1.0, "compile_ms": 0.8, "floor_ms": 0.3, "environment": {"cores": 2}, "invalid": None}
    fields |= {"controls": {"zeros": True, "repeatable": True}, "output_bytes": 100, "input_bytes": 100}
    return types.SimpleNamespace(**fields | changes)


# -------------------------------------------------------------------------------- screen and dedupe


def test_good_tasks_pass_the_screen(tasks):
    kept, dropped = screen(tasks)
    assert kept == tasks and dropped == []


def test_a_wrong_label_is_dropped_with_what_was_traced():
    kept, dropped = screen([dataclasses.replace(RELU, operators=("relu", "add"))])
    assert kept == [] and (dropped[0].rule, dropped[0].figures) == ("label", {"traced": ["relu", "mul"]})


def test_what_cannot_be_traced_is_dropped_with_the_error():
    _, dropped = screen([Task(source="import torch", origin="user")])
    assert dropped[0].rule == "untraceable" and "without Model" in dropped[0].figures["error"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.relu(x) * 0.5", "0.5 * torch.relu(x)  # half"),
        ("torch.relu(x)", "x.relu()"),
        ("x", "inputs"),
        ("import torch.nn as nn", "from torch import nn"),
    ],
)
def test_a_duplicate_in_other_words_is_found(old, new):
    twin = dataclasses.replace(
        RELU, source=SOURCE.replace(old, new) if len(old) > 1 else SOURCE.replace("(x)", "(given)").replace(", x)", ", given)")
    )
    assert twin.id != RELU.id
    kept, dropped = dedupe([RELU, twin])
    assert kept == [RELU] and dropped[0].rule == "near_duplicate" and dropped[0].figures == {"of": RELU.id}


@pytest.mark.parametrize(("old", "new"), [("0.5", "0.75"), ("64, 32", "32, 64"), ("torch.relu(x)", "torch.tanh(x)")])
def test_another_constant_shape_or_operator_is_another_task(old, new):
    other = dataclasses.replace(RELU, source=SOURCE.replace(old, new))
    assert dedupe([RELU, other]) == ([RELU, other], [])
    assert dedupe([RELU, dataclasses.replace(RELU, mode="train")])[1] == []


def test_the_same_task_twice_is_a_duplicate():
    assert [d.rule for d in dedupe([RELU, RELU])[1]] == ["duplicate"]


def test_tasks_with_the_exams_signature_are_dropped_with_its_problem():
    exam = fingerprints([Task(source=SOURCE.replace("64", "1000"), origin="kernelbench/1/7")])
    kept, dropped = screen([RELU], exam=exam)
    assert kept == [] and dropped[0].rule == "exam_signature" and dropped[0].figures == {"problem": "kernelbench/1/7"}
    assert all(isinstance(token, int) for f in exam for token in f.tokens)


def test_tasks_written_like_the_exam_are_dropped_with_the_figure():
    problem = Task(source=SOURCE.replace("* 0.5", "* 0.5 + 1.0"), origin="kernelbench/2/1")
    kept, dropped = screen([RELU], exam=fingerprints([problem]), most_similar=0.9)
    assert kept == [] and dropped[0].rule == "exam_similar" and dropped[0].figures["similarity"] > 0.9
    assert screen([RELU], exam=fingerprints([problem]), most_similar=0.99)[0] == [RELU]


def test_an_exam_problem_that_cannot_be_traced_is_compared_by_its_tree(caplog):
    problem = Task(source=SOURCE.replace("torch.relu(x)", "unknown(x)"), origin="kernelbench/3/1")
    (found,) = fingerprints([problem])
    assert found.operators == () and found.tokens and "kernelbench/3/1" in caplog.text


# --------------------------------------------------------------------------------------- similarity


def test_similarity_is_one_for_itself_and_falls_with_the_difference():
    a, b = tree_tokens(SOURCE), tree_tokens(SOURCE.replace("torch.relu(x) * 0.5", "torch.softmax(x, dim=-1).sum(-1) - x.mean()"))
    assert similarity(a, a) == 1.0
    assert 0.3 < similarity(a, b) < 0.9
    assert similarity(a, b, at_least=0.95) == 0.0
    assert similarity(a, ()) == 0.0


def test_normalising_forgets_names_docstrings_annotations_and_layout_but_no_call():
    dressed = SOURCE.replace(
        "def forward(self, x):", 'def forward(self, t: torch.Tensor) -> torch.Tensor:\n        """Half a relu."""'
    ).replace("relu(x)", "relu(  t  )")
    assert normalise(dressed) == normalise(SOURCE)
    assert normalise(SOURCE.replace("relu", "tanh")) != normalise(SOURCE)
    with pytest.raises(ValueError, match="wanted Python"):
        normalise("def (")


# ---------------------------------------------------------------------------------------- measured


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"invalid": "the reference is random"}, "invalid"),
        ({"eager_ms": None}, "invalid"),
        ({"controls": {"zeros": False, "repeatable": True}}, "control"),
        ({"controls": {"repeatable": False}}, "control"),
        ({"eager_ms": 0.4}, "too_fast"),
        ({"eager_ms": 3.1}, "too_slow"),
        ({"input_bytes": 1 << 20}, "memory"),
    ],
)
def test_each_rule_drops_and_says_its_figures(changes, rule):
    kept, dropped = accept([RELU], [measurement(**changes)], min_ms=0.5, max_ms=3.0, memory_bytes=1 << 20)
    assert kept == [] and dropped[0].rule == rule and dropped[0].figures and dropped[0].operators == RELU.operators


def test_a_kept_task_carries_what_was_measured_and_keeps_its_id():
    (kept,), dropped = accept([RELU], [measurement()], min_ms=0.5, max_ms=3.0)
    assert dropped == [] and kept.id == RELU.id
    assert (kept.baselines.eager_ms, kept.baselines.compile_ms, kept.floor_ms) == (1.0, 0.8, 0.3)


def test_a_task_that_does_not_compile_is_dropped_only_where_compile_is_needed():
    for need, rules in ((False, {}), (True, {"no_compile": 1})):
        _, dropped = accept([RELU], [measurement(compile_ms=None)], min_ms=0.5, max_ms=3.0, need_compile=need)
        assert by_rule(dropped) == rules


def test_wrong_thresholds_and_missing_measurements_are_refused():
    with pytest.raises(ValueError, match="min_ms: got 3"):
        accept([], [], min_ms=3, max_ms=1)
    with pytest.raises(ValueError, match="zip"):
        accept([RELU], [], min_ms=0, max_ms=1)


def test_dropped_tasks_count_by_rule():
    assert by_rule([Dropped(task="a", rule="label"), Dropped(task="b", rule="label"), Dropped(task="c", rule="memory")]) == {
        "label": 2,
        "memory": 1,
    }


# ------------------------------------------------------------------------------------------- split


def test_no_signature_of_a_held_out_split_is_trained_on(tasks):
    split = signature_split(tasks, test=16, validation=5, seed=0)
    by = {name: [t for t in split if t.split == name] for name in ("train", "validation", "test")}
    assert (len(by["test"]), len(by["validation"]), len(by["train"])) == (16, 5, 39)
    signatures = {name: {t.operators for t in group} for name, group in by.items()}
    assert not signatures["test"] & signatures["train"] and not signatures["validation"] & (signatures["train"] | signatures["test"])
    assert [t.id for t in split] == [t.id for t in tasks]


def test_the_split_follows_its_seed_and_not_the_order_of_tasks(tasks):
    one = {t.id: t.split for t in signature_split(tasks, test=16, validation=0, seed=0)}
    assert one == {t.id: t.split for t in signature_split(tasks[::-1], test=16, validation=0, seed=0)}
    assert one != {t.id: t.split for t in signature_split(tasks, test=16, validation=0, seed=1)}


def test_a_split_that_cannot_be_made_is_refused_or_said(caplog):
    same = [dataclasses.replace(RELU, source=SOURCE.replace("64", str(64 + i))) for i in range(4)]
    with pytest.raises(ValueError, match="wanted some left to train on"):
        signature_split(same, test=4, validation=0, seed=0)
    with pytest.raises(ValueError, match="no operator signature with at most 2 tasks"):
        signature_split(same, test=2, validation=0, seed=0)
    others = [dataclasses.replace(t, operators=("tanh", "mul")) for t in same[:2]] + same
    assert sum(t.split == "test" for t in signature_split(others, test=3, validation=0, seed=0)) == 2
    assert "test: 2 of 3 tasks held out" in caplog.text


# ----------------------------------------------------------------------- further rules and the exam


def variant(old: str, new: str) -> Task:
    source = SOURCE.replace(old, new)
    return Task(source=source, origin="synthetic", operators=trace(source).operators)


def test_an_input_or_a_parameter_that_nothing_depends_on_drops_the_task_with_its_name():
    idle = variant("torch.relu(x) * 0.5", "torch.relu(x * 0) * 0.5")
    assert screen([idle])[1] == []
    source = SOURCE.replace("(self, x)", "(self, x, y)").replace("[torch.randn(64, 32)]", "[torch.randn(64, 32), torch.randn(64, 32)]")
    kept, dropped = screen([dataclasses.replace(RELU, source=source)])
    assert kept == [] and (dropped[0].rule, dropped[0].figures) == ("unused", {"names": ["y"]})
    layer = SOURCE.replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n        self.w = nn.Parameter(torch.ones(3))\n\n    def forward",
    )
    dropped = screen([Task(source=layer, origin="synthetic", operators=("relu", "mul"))])[1]
    assert (dropped[0].rule, dropped[0].figures) == ("unused", {"names": ["w"]})


def test_an_operator_that_draws_numbers_drops_the_task():
    kept, dropped = screen([variant("torch.relu(x)", "torch.relu(x + torch.rand_like(x))")])
    assert kept == [] and dropped[0].rule == "random" and dropped[0].figures["operators"] == ["rand_like"]


def test_a_task_at_what_is_attainable_is_dropped_and_one_with_room_or_unknown_is_kept():
    options = {"min_ms": 0.5, "max_ms": 3.0, "min_headroom": 1.1}
    _, dropped = accept([RELU], [measurement()], attainable_ms={RELU.id: 0.79}, **options)
    assert (dropped[0].rule, dropped[0].figures["attainable_ms"]) == ("headroom", 0.79)
    for known in ({RELU.id: 0.5}, {}, None):
        assert accept([RELU], [measurement()], attainable_ms=known, **options)[1] == []


def test_fingerprints_come_back_from_their_file_the_same_bytes_each_time_and_hold_no_text(tmp_path):
    exam = fingerprints([Task(source=SOURCE, origin="kernelbench/1/7")])
    write_fingerprints(tmp_path / "a.gz", exam)
    write_fingerprints(tmp_path / "b.gz", exam)
    assert read_fingerprints(tmp_path / "a.gz") == exam
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    text = gzip.decompress((tmp_path / "a.gz").read_bytes()).decode()
    assert "Module" not in text and "def " not in text and "import" not in text


def test_an_unreadable_fingerprint_file_names_the_file_and_the_line(tmp_path):
    path = tmp_path / "exam.gz"
    path.write_bytes(b"plain")
    with pytest.raises(ValueError, match=r"exam.gz:1: got .*, wanted gzipped"):
        read_fingerprints(path)
    path.write_bytes(gzip.compress(b'{"origin": "a", "tokens": [1], "operators": []}\n{"origin": 1, "colour": 2}\n'))
    with pytest.raises(ValueError, match=r"exam.gz:2: got .*colour"):
        read_fingerprints(path)


def test_the_stored_exam_is_all_of_kernelbench_and_refuses_a_plain_relu():
    exam = read_fingerprints(FINGERPRINTS)
    assert len(exam) == 250 and sum(bool(f.operators) for f in exam) >= 240
    assert {f.origin for f in exam} >= {"kernelbench/1/19", "kernelbench/2/80", "kernelbench/3/50"}
    _, dropped = screen([variant("torch.relu(x) * 0.5", "torch.relu(x)")], exam=exam)
    assert (dropped[0].rule, dropped[0].figures) == ("exam_signature", {"problem": "kernelbench/1/19"})


@pytest.mark.parametrize(
    ("operators", "family"),
    [
        (("relu", "convolution", "sum"), "convolution"),
        (("addmm", "softmax"), "matmul"),
        (("mul", "softmax"), "softmax"),
        (("pow", "mean", "add", "rsqrt", "mul"), "norm"),
        (("rsqrt",), "elementwise"),
        (("sum", "gelu"), "reduction"),
        (("cumsum",), "scan"),
        (("mse_loss",), "loss"),
        (("relu", "mul"), "elementwise"),
    ],
)
def test_the_family_is_that_of_the_costliest_operator(operators, family):
    assert family_of(operators) == family


def test_the_test_split_shares_no_signature_and_no_pair_with_train_and_one_family_is_held_out_whole(tasks):
    many = synthesize(count=300, seed=2, mix={1: 0.1, 2: 0.5, 3: 0.4}, families=list(FAMILIES), regimes=list(REGIMES), max_elements=1 << 16)
    split, dropped = family_split(many, test=90, validation=20, seed=0, held_family="softmax")
    by = {name: [t for t in split if t.split == name] for name in ("train", "validation", "test")}
    assert len(by["validation"]) <= 20 and 60 <= len(by["test"]) <= 90 and len(by["train"]) > 100
    assert not {t.operators for t in by["test"]} & {t.operators for t in by["train"] + by["validation"]}
    assert not {pair_of(t) for t in by["test"]} & {pair_of(t) for t in by["train"] + by["validation"]}
    assert {t.split for t in split if family_of(t.operators) == "softmax"} == {"test"}
    assert len({family_of(t.operators) for t in by["test"]}) > 1
    little, _ = family_split(many, test=40, validation=0, seed=0, held_family="softmax")  # of which there are more
    assert len({family_of(t.operators) for t in little if t.split == "test"}) > 1
    assert {d.rule for d in dropped} == {"split"} and len(split) + len(dropped) == 300
    again, _ = family_split(many[::-1], test=90, validation=20, seed=0, held_family="softmax")
    assert {t.id: t.split for t in again} == {t.id: t.split for t in split}
    with pytest.raises(ValueError, match="wanted some left to train on"):
        family_split(many, test=300, validation=0, seed=0)
