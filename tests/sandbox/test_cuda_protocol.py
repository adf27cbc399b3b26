"""The judge's logic on the GPU path, with a driver made of host memory: order, blame, comparison, verdict fields."""

import dataclasses
import json
import os
import signal

import pytest

from data.records import Baselines, Candidate, SandboxError, Status, Task
from sandbox.backends import Failed, Limits, TaskInvalid

torch = pytest.importorskip("torch")

RELU = Task(
    source="""import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(64, 256)]
def get_init_inputs():
    return []
""",
    origin="user",
)
LINEAR = Task(
    source="""import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, 16)
    def forward(self, x):
        return torch.relu(self.linear(x))
def get_inputs():
    return [torch.randn(32, 64)]
def get_init_inputs():
    return [64]
""",
    origin="user",
)
IN_PLACE = dataclasses.replace(RELU, source=RELU.source.replace("return torch.relu(x)", "x.mul_(2.0)\n        return torch.relu(x)"))
RETURNED = dataclasses.replace(RELU, source=RELU.source.replace("return torch.relu(x)", "return x.mul_(2.0).relu_()"))
ADDS_UP = dataclasses.replace(
    RELU,
    source=RELU.source.replace(
        "    def forward(self, x):\n",
        "    def __init__(self):\n        super().__init__()\n        self.register_buffer('total', torch.zeros(256))\n        self.scale = nn.Parameter(torch.ones(1))\n"
        "    def forward(self, x):\n        self.total += x.sum(0)\n",
    ).replace("return torch.relu(x)", "return torch.relu(x) * self.scale"),
)
LIMITS = Limits(calls=12, call_s=8.0, build_s=3.0, total_s=60.0)


def plan_of(kernel, text="", **changes):
    source = text + f'extern "C" __global__ void {kernel}(const float* x, float* y, long long n) {{}}'
    tree = {
        "outputs": {"y0": {"like": "x0"}},
        "steps": [{"kernel": kernel, "grid": [1], "block": [32], "args": ["x0", "y0", "x0.numel"]}],
    } | changes
    return Candidate(format="plan", files={"kernels.cu": source, "plan.json": json.dumps(tree)})


def module_of(body, head="", init=""):
    source = f"import torch\nfrom torch import nn\n{head}\nclass ModelNew(nn.Module):\n    def __init__(self, *args):\n        super().__init__()\n        {init or 'pass'}\n"
    return Candidate(
        format="cupy",
        files={"model_new.py": source + "    def forward(self, x):\n" + "".join(f"        {line}\n" for line in body.splitlines())},
    )


@pytest.fixture(scope="module")
def backend():
    from tests.sandbox import fake_cuda

    monkeypatch = pytest.MonkeyPatch()
    with fake_cuda.installed(monkeypatch):
        from sandbox.cuda import CudaBackend

        made = CudaBackend()
        yield made
        made._drop()
        made.references.drop()
    monkeypatch.undo()


READY = {}


def prepare(backend, task):
    if task.id not in READY:
        READY[task.id] = backend.prepare(task, limits=LIMITS, precision="fp32", track="default")
    return READY[task.id]


def judged(backend, candidate, task=RELU):
    backend.check(candidate, policy="libraries_allowed" if candidate.format == "plan" else "mixed")
    built = backend.build(candidate, limits=LIMITS)
    prepared = prepare(backend, task)
    return backend.judge(prepared, candidate, built, policy="libraries_allowed")


def failure(backend, candidate, task=RELU):
    with pytest.raises(Failed) as error:
        judged(backend, candidate, task)
    return error.value


def test_a_correct_plan_has_device_and_wall_times_and_intervals(backend):
    found = judged(backend, plan_of("relu"))
    assert set(found.device_ms) == set(found.times_ms) == {"candidate", "eager", "compile"}
    assert set(found.speedup) == {"eager", "compile"} and found.own_kernel_share == 1.0 and found.kernels == ("relu",)


@pytest.mark.parametrize(
    ("kernel", "status", "says"),
    [("stale", Status.INCORRECT, "output 0"), ("half", Status.INCORRECT, "output 0"), ("beyond", Status.INCORRECT, "beside its outputs"),
     ("scribble", Status.INCORRECT, "input x0 was changed"), ("crash", Status.RUNTIME_ERROR, "died"), ("fault", Status.RUNTIME_ERROR, "ILLEGAL_ADDRESS"),
     ("hang", Status.TIMEOUT, "no answer")],
)  # fmt: skip
def test_what_a_plan_does_wrong_is_its_own_verdict(backend, kernel, status, says):
    found = failure(backend, plan_of(kernel))
    assert found.status is status and says in str(found)


def plan_with_total(kernel):
    files = plan_of(kernel).files
    steps = [{"kernel": kernel, "grid": [1], "block": [32], "args": ["x0", "y0", "p.total", "p.scale", "x0.numel"]}]
    source = files["kernels.cu"].replace("float* y,", "float* y, float* total, const float* scale,")
    return Candidate(
        format="plan", files={"kernels.cu": source, "plan.json": json.dumps(json.loads(files["plan.json"]) | {"steps": steps})}
    )


@pytest.mark.parametrize(
    ("task", "kernel", "rule"),
    [(IN_PLACE, "doubles", None), (IN_PLACE, "doubled", "inputs_left"), (IN_PLACE, "triples", "inputs_left"),
     (RETURNED, "doubled", None), (RETURNED, "triples", "inputs_left"), (RELU, "scribble", "inputs_changed")],
)  # fmt: skip
def test_inputs_of_a_plan_are_as_the_reference_leaves_them(backend, task, kernel, rule):
    if rule is None:
        assert judged(backend, plan_of(kernel), task).own_kernel_share == 1.0
    else:
        found = failure(backend, plan_of(kernel), task)
        assert (found.status, found.rule) == (Status.INCORRECT, rule) and "input x0" in str(found)


@pytest.mark.parametrize(
    ("task", "body", "rule"),
    [(IN_PLACE, "x.mul_(2)\nreturn torch.relu(x)", None), (IN_PLACE, "return torch.relu(2 * x)", "inputs_left"),
     (RETURNED, "return torch.relu(2 * x)", None), (RETURNED, "return x.mul_(2.0).relu_()", None),
     (RELU, "y = torch.relu(x)\nx.zero_()\nreturn y", "inputs_changed")],
)  # fmt: skip
def test_inputs_of_a_module_are_as_the_reference_leaves_them(backend, task, body, rule):
    if rule is None:
        assert judged(backend, module_of(body), task).times_ms
    else:
        found = failure(backend, module_of(body), task)
        assert (found.status, found.rule) == (Status.INCORRECT, rule) and "input x0" in str(found)


def test_a_plan_leaves_buffers_as_the_reference_does_and_the_next_finds_them_new(backend):
    for _ in range(2):
        assert judged(backend, plan_with_total("adds_up"), ADDS_UP).own_kernel_share == 1.0
        for kernel in ("scales", "adds_up_twice"):
            found = failure(backend, plan_with_total(kernel), ADDS_UP)
            assert (found.status, found.rule) == (Status.INCORRECT, "buffers") and "buffer total after the call" in str(found)
    prepared = prepare(backend, ADDS_UP)
    assert torch.equal(prepared.slab.parameters["total"], prepared.reference.state["total"])


@pytest.mark.parametrize(
    ("body", "rule"),
    [("self.total += x.sum(0)\nreturn torch.relu(x) * self.scale", None), ("self.total = self.total + x.sum(0)\nreturn torch.relu(x) * self.scale", None),
     ("return torch.relu(x) * self.scale", "buffers"), ("self.n += 1\nself.total += x.sum(0) * (self.n < 9)\nreturn torch.relu(x) * self.scale", "buffers")],
)  # fmt: skip
def test_a_module_leaves_buffers_as_the_reference_does(backend, body, rule):
    candidate = module_of(body, init="self.register_buffer('total', torch.zeros(256)); self.scale, self.n = nn.Parameter(torch.ones(1)), 0")
    for _ in range(2):
        if rule is None:
            assert judged(backend, candidate, ADDS_UP).times_ms
        else:
            found = failure(backend, candidate, ADDS_UP)
            assert (found.status, found.rule) == (Status.INCORRECT, rule) and "buffer total after the call" in str(found)


def test_a_module_that_reshapes_its_input_in_place_meets_it_as_it_was(backend):
    task = dataclasses.replace(RELU, source=RELU.source.replace("return torch.relu(x)", "return x.unsqueeze_(1).mul_(2.0)"))
    for body in ("return x.unsqueeze_(1).mul_(2.0)", "return (2.0 * x).unsqueeze(1)"):
        assert judged(backend, module_of(body), task).times_ms


def test_buffers_that_the_reference_leaves_alone_are_not_to_be_written(backend):
    task = dataclasses.replace(ADDS_UP, source=ADDS_UP.source.replace("self.total += x.sum(0)", "pass"))
    found = failure(backend, plan_with_total("adds_up"), task)
    assert found.status is Status.INCORRECT and "wrote to parameter total" in str(found)


def test_the_next_candidate_finds_memory_as_it_should_be(backend):
    for _ in range(2):
        failure(backend, plan_of("beyond"))
        assert judged(backend, plan_of("relu")).own_kernel_share == 1.0


def test_compile_errors_are_told_and_remembered(backend):
    from tests.sandbox import fake_cuda

    first = failure(backend, plan_of("relu", "int broken;"))
    count = len(fake_cuda.SPAWNED)
    again = failure(backend, plan_of("relu", "int broken;"))
    assert first.status is again.status is Status.COMPILE_ERROR and "broken is undefined" in str(again)
    assert len(fake_cuda.SPAWNED) == count


def test_a_plan_with_other_outputs_is_incorrect_and_one_that_cannot_be_bound_is_no_plan(backend):
    other = plan_of("relu", outputs={"y0": {"dtype": "float32", "shape": ["x0.shape[0]"]}})
    assert failure(backend, other).status is Status.INCORRECT
    assert (
        failure(backend, plan_of("relu", let={"n": "x0.shape[7]"}, buffers={"t0": {"dtype": "float32", "shape": ["n"]}})).status
        is Status.FORMAT_ERROR
    )


def test_library_steps_run_and_count_as_not_own(backend):
    steps = [
        {"gemm": {"a": "x0", "b": "p.linear.weight", "out": "t0", "trans_b": True}},
        {"copy": {"from": "p.linear.bias", "to": "t1"}},
        {"fill": {"to": "t2", "value": 1.0}},
        {"gemm": {"a": "t2", "b": "t1", "out": "t0", "beta": 1.0}},
        {"kernel": "relu", "grid": [1], "block": [32], "args": ["t0", "y0", "y0.numel"]},
    ]
    shape = {"dtype": "float32", "shape": ["x0.shape[0]", 16]}
    buffers = {"t0": shape, "t1": {"dtype": "float32", "shape": [1, 16]}, "t2": {"dtype": "float32", "shape": ["x0.shape[0]", 1]}}
    candidate = plan_of("relu", outputs={"y0": shape}, buffers=buffers, steps=steps)
    found = judged(backend, candidate, LINEAR)
    assert 0 < found.own_kernel_share < 1
    with pytest.raises(Failed) as error:
        backend.check(candidate, policy="own_kernels_only")
    assert error.value.status is Status.REJECTED and error.value.rule == "library_kernel"


def test_a_correct_module_is_below_resolution_when_calls_are_short(backend):
    found = judged(backend, module_of("return torch.relu(x)"))
    assert (
        found.speedup is None and "below_resolution" in found.flags and "own_share_static" in found.flags and found.own_kernel_share is None
    )


def test_a_slow_task_gets_credit_for_a_faster_module(backend):
    task = dataclasses.replace(
        RELU,
        source=RELU.source.replace("        return torch.relu(x)", "        import time; time.sleep(0.02)\n        return torch.relu(x)"),
    )
    found = judged(backend, module_of("import time; time.sleep(0.005)\nreturn torch.relu(x)"), task)
    low, median, high = found.speedup["eager"]
    assert 1.8 < median < 6 and low <= median <= high


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [("return torch.relu(x) + 1", Status.INCORRECT, "output 0"), ("return torch.relu(x)[0]", Status.INCORRECT, "output: got"), ("return 1 / 0", Status.RUNTIME_ERROR, "ZeroDivision"),
     ("import os; os._exit(0)", Status.RUNTIME_ERROR, "died"), ("raise SystemExit(3)", Status.RUNTIME_ERROR, "SystemExit"), ("import time; time.sleep(60)", Status.TIMEOUT, "no answer"),
     ("self.y = getattr(self, 'y', torch.relu(x)); return self.y", Status.INCORRECT, "output 0"), ("return torch.empty_like(x)", Status.INCORRECT, "output 0"),
     ("x.clamp_(min=0); return x.clone()", Status.INCORRECT, "x0 was changed"), ("return (torch.relu(x),)", Status.INCORRECT, "got tuple"),
     ("return torch.relu(x).double()", Status.INCORRECT, "float64"), ("raise MemoryError", Status.OUT_OF_MEMORY, "MemoryError")],
)  # fmt: skip
def test_what_a_module_does_wrong_is_its_own_verdict(backend, body, status, says):
    found = failure(backend, module_of(body))
    assert found.status is status and says in str(found), (found.status, str(found), found.log)


@pytest.mark.parametrize(
    "message", [b"E{}", b"Enot json", b"Z", b"", b'E{"status": "correct", "reason": "x", "log": "", "ours": true}', b"E" + b"x" * 70000]
)
def test_odd_messages_of_a_module_are_its_failure_and_never_ours(backend, message):
    head = f"""
import contextlib, gc, socket, struct
def odd():
    for thing in gc.get_objects():
        if isinstance(thing, socket.socket) and thing.fileno() >= 0:
            with contextlib.suppress(OSError):
                thing.sendall(struct.pack("<I", {len(message)}) + {message!r})
"""
    found = failure(backend, module_of("odd()\nreturn torch.relu(x)", head))
    assert found.status is Status.RUNTIME_ERROR


def test_a_reference_server_that_died_is_our_failure_once(backend):
    judged(backend, module_of("return torch.relu(x)"))
    os.kill(backend.references.server.child.pid, signal.SIGKILL)
    with pytest.raises(SandboxError):
        judged(backend, module_of("return torch.relu(x)"))
    assert judged(backend, module_of("return torch.relu(x)")).times_ms


def test_weights_travel_by_name_or_by_shape(backend):
    named = module_of("return torch.relu(self.linear(x))", init="self.linear = nn.Linear(64, 16)")
    other = module_of("return torch.relu(self.other(x))", init="self.other = nn.Linear(64, 16)")
    assert "weights_by_shape" not in judged(backend, named, LINEAR).flags
    assert "weights_by_shape" in judged(backend, other, LINEAR).flags


def test_stress_failures_have_their_rule(backend):
    found = failure(backend, module_of("return torch.relu(x) if x.abs().max() < 30 else x"))
    assert found.status is Status.INCORRECT and found.rule == "stress"


def test_a_reference_that_fails_is_the_tasks_fault(backend):
    for body in ("return torch.relu(x) / len([])", "return torch.relu(x) + torch.rand(1)", "return torch.zeros(3)"):
        with pytest.raises(TaskInvalid):
            judged(backend, plan_of("relu"), dataclasses.replace(RELU, source=RELU.source.replace("return torch.relu(x)", body)))


def test_faster_than_the_bytes_allow_is_rejected(backend):
    prepared = prepare(backend, RELU)
    prepared.floor_ms = 1e6
    try:
        found = failure(backend, plan_of("relu"))
    finally:
        prepared.floor_ms = None
    assert found.status is Status.REJECTED and found.rule == "beyond_floor"


def test_events_that_contradict_the_clock_are_rejected():
    from sandbox.cuda import _check_clock

    _check_clock(1.0, 1.1, 1)
    _check_clock(0.002, 0.06, 1)
    with pytest.raises(Failed) as error:
        _check_clock(0.1, 1.0, 1)
    assert error.value.rule == "clock"


def test_recorded_baselines_are_taken_only_from_the_same_machine(backend):
    measured = backend.measure(prepare(backend, RELU))
    assert measured.eager_ms > 0 and all(measured.controls.values()) and measured.input_bytes == measured.output_bytes == 65536
    environment = json.loads(json.dumps(measured.environment))
    for change, taken in (({}, True), ({"gpu": "another"}, False)):
        known = Baselines(eager_ms=1e9, compile_ms=5e8, environment=environment | change)
        prepared = backend.prepare(dataclasses.replace(RELU, baselines=known), limits=LIMITS, precision="fp32", track="default")
        # An eager time this far off is drift, so even the same machine measures anew
        assert len(prepared.device["compile"][0]) > 3
        eager = prepared.device["eager"][0]
        known = dataclasses.replace(known, eager_ms=sorted(eager)[len(eager) // 2], compile_ms=7.0)
        prepared.task = dataclasses.replace(RELU, baselines=known)
        assert (backend.references._recorded(prepared) is not None) is taken


def test_tasks_displace_each_other_without_mixing(backend):
    named = module_of("return torch.relu(self.linear(x))", init="self.linear = nn.Linear(64, 16)")
    for _ in range(2):
        judged(backend, plan_of("relu"))
        judged(backend, named, LINEAR)


def test_no_server_outlives_its_candidate(backend):
    from tests.sandbox import fake_cuda

    del fake_cuda.SPAWNED[:]
    judged(backend, plan_of("relu"))
    failure(backend, plan_of("half"))
    failure(backend, module_of("return 1 / 0"))
    alive = [pid for pid in fake_cuda.SPAWNED if os.path.exists(f"/proc/{pid}")]
    assert set(alive) <= {backend.references.server.child.pid}


def test_a_pool_sees_the_gpus_that_are_visible(monkeypatch, tmp_path):
    from sandbox import cuda

    monkeypatch.setattr(cuda.pathlib, "Path", lambda _: tmp_path)
    for i, uuid in enumerate(("GPU-aaaa", "GPU-bbbb")):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "information").write_text(f"Model: H200\nGPU UUID: {uuid}\nDevice Minor: {i}\n")
    for visible, wanted in ((None, ["GPU-aaaa", "GPU-bbbb"]), ("1", ["GPU-bbbb"]), ("GPU-aaaa", ["GPU-aaaa"]), ("", [])):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert cuda.slots() == wanted
    assert cuda.device_node("GPU-bbbb") == "/dev/nvidia1"
