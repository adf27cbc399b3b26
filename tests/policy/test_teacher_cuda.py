"""The teacher's GPU formats: read by the plan's own parser and static check everywhere, judged on a card where there is one."""

import dataclasses
import json
from random import Random

import pytest

from data.operators import FAMILIES
from data.records import Baselines
from data.synthesis import REGIMES, synthesize
from policy.teacher import FORMATS, Teacher, plant
from tests.policy.test_teacher import CHAINS, task_of


@pytest.fixture(scope="module")
def tasks():
    mix = {1: 0.3, 2: 0.4, 3: 0.3}
    made = synthesize(count=24, seed=5, mix=mix, families=list(FAMILIES), regimes=list(REGIMES), max_elements=1 << 19)
    return [*made, *map(task_of, CHAINS.values())]


@pytest.mark.parametrize("format", ["plan", "cupy"])
def test_gpu_candidates_pass_the_static_checks(tasks, format):
    from sandbox.check import check_candidate
    from sandbox.plan import parse

    teacher = Teacher(0, format=format, backend="cuda")
    for number, task in enumerate(tasks):
        candidate = teacher.write(task, Random(number))
        if format == "plan":
            parse(candidate.files)
        else:
            check_candidate(candidate, policy="own_kernels_only", backend="cuda")
        assert plant(candidate, Random(number)).id != candidate.id


def test_rows_too_long_for_shared_memory_get_a_scratch_tensor():
    short, long = (task_of("return torch.softmax(x, -1)", (2, n)) for n in (1000, 300_000))
    teacher = Teacher(0, format="plan", backend="cuda")
    plans = [json.loads(teacher.write(t, Random(0)).files["plan.json"]) for t in (short, long)]
    assert plans[0]["steps"][0]["shared"] == "4 * n" and "buffers" not in plans[0]
    assert "shared" not in plans[1]["steps"][0] and plans[1]["buffers"] == {"t0": {"dtype": "float32", "shape": [1, "m"]}}


def test_blocks_differ_between_seeds_and_suit_the_rows():
    teacher = Teacher(0, format="plan", backend="cuda")
    for forward, columns, wanted in (
        ("torch.relu(x)", 4096, {256, 512}),
        ("torch.softmax(x, -1)", 16, {64, 128}),
        ("torch.softmax(x, -1)", 1024, {64, 128}),
        ("torch.softmax(x, -1)", 4096, {256, 512}),
        ("torch.softmax(x, -1)", 300_000, {1024, 512}),
    ):
        task = task_of(f"return {forward}", (2, columns))
        assert {teacher.versions(task, Random(n)).schedule.block for n in range(40)} == wanted
        assert teacher.versions(task, Random(0), best=True).schedule.block in wanted


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("format", [f for f, b in FORMATS if b == "cuda"])
def test_gpu_candidates_are_correct_through_the_judge(tasks, format):
    from sandbox import cuda
    from sandbox.judge import judge

    if not cuda.slots():
        pytest.skip("no NVIDIA GPU on this machine")
    teacher = Teacher(0, format=format, backend="cuda")
    some = tasks if format == "plan" else tasks[-4:]
    wrong = []
    for number, task in enumerate(some):
        task = dataclasses.replace(task, baselines=Baselines(eager_ms=1.0, compile_ms=1.0, environment={}))
        verdict = judge(task, teacher.write(task, Random(number)), backend="cuda")
        print(format, task.operators or number, verdict.status.value, verdict.reason, verdict.times_ms, verdict.speedup)
        if not verdict.correct:
            wrong.append((task.source, verdict.status.value, verdict.reason))
    assert not wrong
