"""The reference side: what is asked, what is accepted, what is a fact about the task."""

import itertools

import gallery
import pytest
import torch

from data.records import Task
from sandbox import compare, oracle
from sandbox.backends import Limits, TaskInvalid

HEAD = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        {}\n\n\n"
TAIL = "def get_inputs():\n    return [torch.{}]\n\n\ndef get_init_inputs():\n    return []\n"


def made(forward: str, inputs: str = "rand(64, 256)") -> Task:
    return Task(source=HEAD.format(forward) + TAIL.format(inputs), origin="user")


@pytest.mark.parametrize(
    "forward, inputs, words",
    [
        ("return torch.relu(x) + torch.rand_like(x)", "rand(64, 256)", "random"),
        ("return torch.nn.functional.dropout(x, 0.5, training=True)", "rand(64, 256)", "random"),
        ("return x * 0 + 1", "rand(64, 256)", "degenerate"),
        ("raise ValueError('no')", "rand(64, 256)", "does not run"),
        ("return {x}", "rand(64, 256)", "got set, wanted tensors and numbers"),
        ("return [x] * 17", "rand(64, 256)", "got 17 tensors, wanted at most 16"),
        ("return 1 << 80", "rand(64, 256)", "wanted one of 64 bits"),
        ("return x / 0", "ones(64, 256)", "degenerate"),
        ("return torch.relu(x)", "rand(1 << 11, 1 << 11)", "does not fit"),
        ("return x.max(dim=1, keepdim=True)[0] - x.max(dim=1, keepdim=True)[0].mean(dim=1, keepdim=True)", "rand(64, 256)", "degenerate"),
    ],
)
def test_a_task_that_cannot_be_judged_says_why(forward, inputs, words):
    with pytest.raises(TaskInvalid, match=words):
        reference = oracle.Reference(made(forward, inputs), limits=Limits(memory_bytes=1 << 26))
        if not all(reference.controls().values()):
            raise TaskInvalid("degenerate")


STATE = "self.{} = torch.tanh(x[0] + self.{}); return x + self.{}"


@pytest.mark.parametrize(
    ("fields", "forward", "words"),
    [
        ("self.h = torch.randn(256)", STATE.format(*"hhh"), "keeps state between calls"),
        ("self.register_buffer('b', torch.zeros(256))", STATE.format(*"bbb"), "keeps state between calls"),
        ("self.n = 0", "self.n += 1; return x + self.n", "keeps state between calls"),
        ("self.n = 0", "self.n += 1; return x + self.n + torch.rand_like(x)", "is random: the same inputs"),
        ("self.h = torch.randn(256)", "return x + self.h", "is random: two instances"),
    ],
)
def test_a_reference_that_keeps_state_is_not_called_random(fields, forward, words):
    source = made(forward).source.replace(
        "    def forward", f"    def __init__(self):\n        super().__init__()\n        {fields}\n\n    def forward"
    )
    with pytest.raises(TaskInvalid, match=words):
        oracle.Reference(Task(source=source, origin="user"))


def test_no_model_no_source_and_no_python_are_facts_about_the_task():
    for source in ("x = 1", "def broken(", "raise SystemError('x')"):
        with pytest.raises(TaskInvalid):
            oracle.Reference(Task(source=source, origin="user"))


def test_two_draws_share_nothing_and_carry_needles():
    reference = oracle.Reference(gallery.task("relu"))
    a, b = reference.draw(), reference.draw()
    assert (a.inputs[0] == b.inputs[0]).double().mean() < 0.01
    assert a.needles and float(a.inputs[0].abs().max()) > 2.0


def test_inputs_do_not_follow_a_seed_somebody_set():
    reference = oracle.Reference(gallery.task("relu"))
    torch.manual_seed(0)
    a = reference.draw().inputs[0]
    torch.manual_seed(0)
    assert not torch.equal(a, reference.draw().inputs[0])


def test_a_distribution_that_breaks_the_reference_is_dropped():
    assert "signed" in oracle.Reference(gallery.task("relu")).kinds
    assert "signed" not in oracle.Reference(made("return torch.log(x + 1e-3)")).kinds


def test_parameters_are_away_from_their_initial_values_and_variances_stay_positive():
    source = gallery.task("norm").source.replace("nn.LayerNorm(512)", "nn.BatchNorm1d(512)")
    state = oracle.Reference(Task(source=source, origin="user")).state
    assert float((state["norm.weight"] - 1).abs().max()) > 0.1 and float(state["norm.bias"].abs().max()) > 0.1
    assert float(state["norm.running_var"].min()) > 0 and int(state["norm.num_batches_tracked"]) == 0


def test_nobody_sees_a_question_twice_and_the_next_candidate_gets_them_again():
    reference = oracle.Reference(gallery.task("relu"))
    first = [id(c) for c in itertools.islice(reference.cases("own"), 5)]
    second = [id(c) for c in itertools.islice(reference.cases("own"), 7)]
    assert len(set(first)) == 5 and len(set(second)) == 7 and set(first) <= set(second)


@pytest.mark.parametrize("name", ["pair", "softmax", "transposed", "row_sum"])
def test_some_questions_share_their_first_values_with_an_earlier_one_and_have_another_answer(name):
    reference = oracle.Reference(gallery.task(name))
    cases = list(itertools.islice(reference.cases("own"), 40))
    first, twins = cases[0], 0
    for case in cases[1:]:
        pairs = [(a, b) for a, b in zip(case.inputs, first.inputs, strict=True) if isinstance(a, torch.Tensor)]
        if all(torch.equal(a.flatten()[:64], b.flatten()[:64]) and torch.equal(a.flatten()[-64:], b.flatten()[-64:]) for a, b in pairs):
            twins += 1
            assert compare.difference(first.expected, case) is not None, "a stale answer is wrong"
            own, _ = reference._forward(reference.model, case.inputs)
            assert compare.difference(own, case) is None
            assert all((a != b).double().mean() < 0.5 and a.stride() == b.stride() for a, b in pairs)
    assert 1 <= twins <= 24


@pytest.mark.parametrize(
    ("inputs", "differ"),
    [
        ("rand(64, 64).tril()", True),
        ("randn(2, 4, 8)", True),
        ("randn(64).diag()", False),
        ("randn(2, 3)", False),
        ("randn(9, 0)", False),
        ("ones(64, 256)", False),
    ],
)
def test_other_rows_keep_zeros_in_their_places_and_often_the_sum(inputs, differ):
    value, other = eval(f"torch.{inputs}"), eval(f"torch.{inputs}")
    found = [oracle._other_rows(value, other) for _ in range(40)]
    assert all(torch.equal(f != 0, value != 0) for f in found)
    changed = [f for f in found if f is not value]
    assert bool(changed) is differ and all(not torch.equal(f, value) for f in changed)
    assert any(torch.isclose(f.double().sum(), value.double().sum(), rtol=1e-12) for f in changed) is (inputs == "randn(2, 4, 8)")


def test_layouts_of_inputs_survive_every_distribution():
    reference = oracle.Reference(gallery.task("transposed"))
    for kind in reference.kinds:
        assert reference.draw(kind).inputs[0].stride() == (1, 256)


def case_of(expected: torch.Tensor, relative: float = 2e-5) -> oracle.Case:
    return oracle.Case(kind="own", inputs=[], expected=[expected], tolerance=[compare.Tolerance(relative=relative)])


def test_a_far_value_loosens_nothing_in_other_rows():
    expected = torch.full((4, 256), 1e-3)
    expected[0, 0] = 1e6
    got = expected.clone()
    got[1, 5] += 1e-6
    assert compare.difference([got], case_of(expected)) is not None


def test_zeros_do_not_pass_for_small_numbers():
    expected = torch.softmax(torch.randn(8, 4096), dim=-1)
    assert compare.difference([torch.zeros_like(expected)], case_of(expected)) is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_right_only_where_the_reference_has_them(value):
    expected = torch.rand(8, 8)
    got = expected.clone()
    got[2, 3] = value
    assert compare.difference([got], case_of(expected)) is not None
    assert compare.difference([expected], case_of(got)) is not None
    assert compare.difference([got.clone()], case_of(got)) is None
    assert compare.difference([-got], case_of(got)) is not None


def test_an_infinity_is_not_its_own_tolerance():
    expected = torch.rand(8, 8)
    expected[0, 0] = float("inf")
    got = expected.clone()
    got[0, 0] = 3e38
    assert "inf" in compare.difference([got], case_of(expected))


def test_the_first_difference_names_place_and_values():
    expected = torch.rand(8, 8)
    got = expected.clone()
    got[2, 3] += 1
    assert "at (2, 3)" in compare.difference([got], case_of(expected))


def test_integers_are_exact():
    expected = torch.arange(10)
    assert compare.difference([expected.clone()], case_of(expected)) is None
    assert compare.difference([expected + 1], case_of(expected)) is not None


LAST = {
    "x.argmax(-1)": lambda x: 511 - x.flip(-1).argmax(-1),
    "x.topk(3, -1).indices": lambda x: 511 - x.flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :3],
    "x.sort(-1).indices": lambda x: 511 - x.flip(-1).sort(dim=-1, stable=True).indices,
    "(-x).T.argmin(0)": lambda x: 511 - x.flip(-1).argmax(-1),
}
"""Honest choices of the last of two equal elements where the reference takes another one."""


@pytest.mark.parametrize("forward", LAST)
def test_either_of_two_equal_elements_is_right_and_nothing_else_is(forward):
    task = made(
        f"return {forward}", "randn(400, 512).index_put_((torch.tensor([3, 3, 90, 90]), torch.tensor([7, 300, 2, 511])), torch.tensor(9.0))"
    )
    reference, others = oracle.Reference(task), 0
    for _ in range(6):
        case = reference.draw("own")
        got = LAST[forward](case.inputs[0])
        others += int((got != case.expected[0]).any())
        assert compare.difference([got], case) is None
        wrong = got.clone()
        wrong[(17, *(0 for _ in wrong.shape[1:]))] ^= 1
        assert compare.difference([wrong], case) is not None
    assert others >= 4, "the ties were there"


def test_ties_cost_nothing_where_no_output_is_an_integer(monkeypatch):
    monkeypatch.setattr(oracle.Reference, "_leaned", lambda *_: pytest.fail("asked for"))
    oracle.Reference(made("return x.topk(3, -1).values")).draw("own")


@pytest.mark.parametrize("task", ["softmax", "norm", "pair"])
def test_other_orders_of_summation_pass_and_the_next_lower_precision_fails(task):
    reference = oracle.Reference(gallery.task(task))
    high = reference._high_model()
    for kind in reference.kinds:
        case = reference.draw(kind)
        exact, _ = reference._forward(high, [v.double() for v in case.inputs])
        assert compare.difference([v.float() for v in exact], case) is None, kind
        coarse = [v.half().float() for v in case.expected]
        assert compare.difference(coarse, case) is not None, kind


@pytest.mark.parametrize(
    "forward, inputs",
    [
        # Rows so long that the reference's own fp32 sums are off by more than the tolerance that two draws suggest
        ("return torch.nn.functional.softplus(torch.nn.functional.hardswish(torch.softmax(x, -1)) + 1.0)", "randn(2, 257920)"),
        ("return torch.softmax(torch.nn.functional.silu(x), -1)", "randn(2, 257920)"),
        # Far to the left a gelu of a gelu is nothing but cancellation
        ("return torch.nn.functional.silu(torch.nn.functional.gelu(x))", "randn(400, 160)"),
        ("return torch.nn.functional.gelu(x / 0.7)", "randn(400, 160)"),
    ],
)
def test_an_exact_answer_is_right_also_where_the_reference_is_not(forward, inputs):
    reference = oracle.Reference(made(forward, inputs))
    for kind in reference.kinds:
        for _ in range(4):
            case = reference.draw(kind)
            exact, _ = reference._forward(reference.high, [v.double() for v in case.inputs])
            assert compare.difference([v.float() for v in exact], case) is None, kind
            assert max(t.relative for t in case.tolerance) <= compare.HIGHEST["float32"]


def test_what_overflows_in_one_precision_only_is_as_the_reference_has_it():
    # Only needles are that large, so that the other rows still tell right from wrong
    reference = oracle.Reference(made("return torch.where(x > 2.0, torch.full_like(x, torch.finfo(x.dtype).max), x)"))
    case = reference.draw("own")
    low, _ = reference._forward(reference.model, case.inputs)
    assert case.needles and float(low[0].max()) > 1e38
    assert case.expected[0].isfinite().all() and compare.difference(low, case) is None


def test_bf16_tasks_take_bf16_inputs_and_accept_bf16_rounding():
    reference = oracle.Reference(gallery.task("softmax"), precision="bf16")
    case = reference.draw()
    assert case.inputs[0].dtype == torch.bfloat16 == case.expected[0].dtype
    exact, _ = reference._forward(reference._high_model(), [v.double() for v in case.inputs])
    assert compare.difference([exact[0].to(torch.bfloat16)], case) is None


@pytest.mark.parametrize(("precision", "lower"), [("bf16", torch.float8_e4m3fn), ("fp16", torch.bfloat16)])
@pytest.mark.parametrize(
    "forward",
    [
        "torch.relu(x)", "torch.nn.functional.gelu(x)", "torch.tanh(x)", "x * torch.sigmoid(x) + 1", "torch.softmax(x, -1)", "x.sum(-1)",
        "torch.nn.functional.layer_norm(x, (256,))", "x @ x.T",
    ],
)  # fmt: skip
def test_an_output_rounded_to_the_next_lower_format_fails_in_16_bits_and_one_rounding_passes(forward, precision, lower):
    reference = oracle.Reference(
        Task(source=made(f"return {forward}", "randn(128, 256)").source, origin="user", precision=precision), precision=precision
    )
    seen = []
    for kind in reference.kinds:
        case = reference.draw(kind)
        eager, _ = reference._forward(reference.model, case.inputs)
        once = [eval(forward, {"torch": torch, "x": case.inputs[0].float()}).to(case.expected[0].dtype)]
        assert compare.difference(eager, case) is compare.difference(once, case) is None, kind
        seen.append(compare.difference([v.to(lower).to(v.dtype) for v in case.expected], case))
    assert seen[0] is not None and sum(s is not None for s in seen) > len(seen) / 2
