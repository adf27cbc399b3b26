"""The judge on a real GPU, through the public door. Run with -s: every verdict is printed with its latency."""

import dataclasses
import json
import statistics
import time

import pytest

from data.records import Candidate, Status, Task
from sandbox.backends import Limits
from sandbox.cuda import slots
from sandbox.export import export

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not slots(), reason="no NVIDIA GPU on this machine"), pytest.mark.timeout(240)]
LIMITS = Limits(call_s=3.0)


def task_of(forward, shape, init="", fields=""):
    source = f"""import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, *args):
        super().__init__()
        {fields or "pass"}

    def forward(self, x):
        {forward}


def get_inputs():
    return [torch.randn({", ".join(map(str, shape))})]


def get_init_inputs():
    return [{init}]
"""
    return Task(source=source, origin="user")


RELU = task_of("return torch.relu(x)", (4096, 4096))
CHAIN = task_of("return torch.relu(x * 0.5 + 1.0) * torch.sigmoid(x)", (4096, 4096))
SOFTMAX = task_of("return torch.softmax(x, dim=-1)", (4096, 4096))
LINEAR = task_of("return torch.relu(self.linear(x))", (4096, 1024), "1024", "self.linear = nn.Linear(args[0], 1024)")
LARGE = task_of("return torch.relu(x * 0.5 + 1.0) * torch.sigmoid(x)", (16384, 32768))

RELU_KERNEL = """extern "C" __global__ void relu(const float4* __restrict__ x, float4* __restrict__ y, long long n4) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n4) { float4 v = x[i]; v.x = fmaxf(v.x, 0.f); v.y = fmaxf(v.y, 0.f); v.z = fmaxf(v.z, 0.f); v.w = fmaxf(v.w, 0.f); y[i] = v; }
}"""
CHAIN_KERNEL = """extern "C" __global__ void chain(const float* __restrict__ x, float* __restrict__ y, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i] * 0.5f + 1.0f, 0.0f) / (1.0f + expf(-x[i]));
}"""
SOFTMAX_KERNEL = """
__device__ __forceinline__ float reduce(float v, float* s, bool top) {
  for (int o = 16; o > 0; o >>= 1) { float w = __shfl_xor_sync(0xffffffffu, v, o); v = top ? fmaxf(v, w) : v + w; }
  if ((threadIdx.x & 31) == 0) s[threadIdx.x >> 5] = v;
  __syncthreads();
  v = s[0];
  for (int w = 1; w < (blockDim.x >> 5); ++w) v = top ? fmaxf(v, s[w]) : v + s[w];
  __syncthreads();
  return v;
}
extern "C" __global__ void softmax_row(const float* __restrict__ x0, float* __restrict__ y0, int cols) {
  extern __shared__ float row[];
  __shared__ float part[32];
  const float* x = x0 + (long long)blockIdx.x * cols;
  float* y = y0 + (long long)blockIdx.x * cols;
  float m = -INFINITY, t = 0.0f;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) { float v = x[i]; row[i] = v; m = fmaxf(m, v); }
  m = reduce(m, part, true);
  for (int i = threadIdx.x; i < cols; i += blockDim.x) { float e = expf(row[i] - m); row[i] = e; t += e; }
  t = 1.0f / reduce(t, part, false);
  for (int i = threadIdx.x; i < cols; i += blockDim.x) y[i] = row[i] * t;
}"""


def plan_of(kernel, source, grid="ceil_div(x0.numel, 256)", args=("x0", "y0", "x0.numel"), block=256, **tree):
    step = {"kernel": kernel, "grid": [grid], "block": [block], "args": list(args)} | tree.pop("step", {})
    plan = {"outputs": {"y0": {"like": "x0"}}, "steps": [step]} | tree
    return Candidate(format="plan", files={"kernels.cu": source, "plan.json": json.dumps(plan)})


RELU_PLAN = plan_of("relu", RELU_KERNEL, "ceil_div(x0.numel, 1024)", ("x0", "y0", "x0.numel // 4"))
CHAIN_PLAN = plan_of("chain", CHAIN_KERNEL)
SOFTMAX_PLAN = plan_of("softmax_row", SOFTMAX_KERNEL, "x0.shape[0]", ("x0", "y0", "x0.shape[-1]"), step={"shared": "x0.shape[-1] * 4"})
BIAS_KERNEL = """extern "C" __global__ void bias_relu(float* __restrict__ y, const float* __restrict__ b, long long n, int cols) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(y[i] + b[i % cols], 0.0f);
}"""
LINEAR_PLAN = plan_of(
    "bias_relu",
    BIAS_KERNEL,
    outputs={"y0": {"dtype": "float32", "shape": ["x0.shape[0]", "p.linear.weight.shape[0]"]}},
    steps=[
        {"gemm": {"a": "x0", "b": "p.linear.weight", "out": "y0", "trans_b": True}},
        {
            "kernel": "bias_relu",
            "grid": ["ceil_div(y0.numel, 256)"],
            "block": [256],
            "args": ["y0", "p.linear.bias", "y0.numel", "y0.shape[-1]"],
        },
    ],
)


def cupy_of(
    kernel, source, launch="KERNEL(((n + 255) // 256,), (256,), (x.data_ptr(), y.data_ptr(), n))", before="pass", after="pass", head=""
):
    text = f"""import cupy
import torch
from torch import nn
{head}
KERNEL = cupy.RawModule(code=r'''{source}''', options=("-std=c++17",)).get_function("{kernel}")


class ModelNew(nn.Module):
    def __init__(self, *args):
        super().__init__()

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        {before}
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            {launch}
        {after}
        return y
"""
    return Candidate(format="cupy", files={"model_new.py": text})


def verdict_of(task, candidate, limits=LIMITS, **options):
    from sandbox.judge import judge

    start = time.perf_counter()
    verdict = judge(task, candidate, backend="cuda", limits=limits, **options)
    shown = {k: [round(x, 4) for x in v] for k, v in (verdict.speedup or {}).items()}
    times = {k: {n: round(t, 4) for n, t in (getattr(verdict, k) or {}).items()} for k in ("device_ms", "times_ms")}
    print(f"\n{time.perf_counter() - start:6.2f} s {verdict.status.value} {verdict.rule or ''} {verdict.reason or ''} {times} {shown} "
          f"share={verdict.own_kernel_share} light={verdict.speed_of_light} flags={verdict.flags} stages={verdict.stages_s}", flush=True)  # fmt: skip
    if not verdict.correct or verdict.log:
        print("   log:", verdict.log[-1500:].replace("\n", "\n        "), flush=True)
    return verdict


def test_what_this_machine_is():
    import subprocess
    import sys

    for name, code in (("facts", "from sandbox.cuda import gpu_facts, slots; print(gpu_facts()); print(slots())"),):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        print(name, done.stdout, done.stderr[-2000:], flush=True)
        assert done.returncode == 0 and "error" not in done.stdout and "works" in done.stdout


def test_a_plan_is_correct_and_its_environment_recorded():
    verdict = verdict_of(RELU, RELU_PLAN)
    print(json.dumps(verdict.environment, indent=1))
    assert verdict.correct and verdict.own_kernel_share == 1.0 and verdict.kernels == ("relu",)
    assert 0.9 < verdict.speedup["eager"][1] < 1.2 and 0.5 < verdict.speed_of_light < 1.0


def test_two_judgements_of_the_same_plan_agree():
    times = [verdict_of(RELU, RELU_PLAN).device_ms["candidate"] for _ in range(3)]
    assert max(times) / min(times) < 1.02


def test_fusion_beats_eager_and_is_told_from_it():
    verdict = verdict_of(CHAIN, CHAIN_PLAN)
    assert verdict.correct and verdict.speedup["eager"][0] > 1.5


def test_softmax_and_a_library_gemm_are_correct():
    assert verdict_of(SOFTMAX, SOFTMAX_PLAN).correct
    verdict = verdict_of(LINEAR, LINEAR_PLAN)
    assert verdict.correct and 0 < verdict.own_kernel_share < 0.9
    assert verdict_of(LINEAR, LINEAR_PLAN, policy="own_kernels_only").rule == "library_kernel"


def change(old, new, source=RELU_KERNEL):
    assert old in source
    return plan_of("relu", source.replace(old, new), "ceil_div(x0.numel, 1024)", ("x0", "y0", "x0.numel // 4"))


STALE = change(
    "float4 v = x[i];",
    "if (have) { y[i] = kept[i]; return; } float4 v = x[i];",
    "__device__ float4 kept[4096 * 1024];\n__device__ int have = 0;\n"
    + RELU_KERNEL.replace("y[i] = v; }", "y[i] = kept[i] = v; if (i == 0) have = 1; }"),
)


@pytest.mark.parametrize(
    ("name", "candidate", "status"),
    [
        ("wrong", change("v.w = fmaxf(v.w, 0.f)", "v.w = fabsf(v.w)"), Status.INCORRECT),
        ("unwritten", change("if (i < n4)", "if (i < n4 && i != 12345)"), Status.INCORRECT),
        ("stale", STALE, Status.INCORRECT),
        ("beside", change("if (i < n4)", "if (i == 0) y[n4].x = 1.0f; if (i < n4)"), Status.INCORRECT),
        ("far", change("if (i < n4)", "if (i == 0) y[1ll << 45].x = 1.0f; if (i < n4)"), Status.RUNTIME_ERROR),
        ("input", change("float4 v = x[i];", "float4 v = x[i]; if (i == 7) const_cast<float4*>(x)[i].x = 3.0f;"), Status.INCORRECT),
        ("endless", change("if (i < n4)", "while (i == 0 && n4 > 0) { if (((volatile const float4*)x)[0].x > 1e30f) break; } if (i < n4)"), Status.TIMEOUT),
        ("compile", change("fmaxf(v.x, 0.f)", "fmaxf(v.x, undefined)"), Status.COMPILE_ERROR),
        ("trap", change("if (i < n4)", "if (i == 0) asm(\"trap;\"); if (i < n4)"), Status.RUNTIME_ERROR),
        ("format", Candidate(format="plan", files={"kernels.cu": RELU_KERNEL, "plan.json": "{}"}), Status.FORMAT_ERROR),
        ("registers", plan_of("relu", "extern \"C\" __global__ void __launch_bounds__(32) relu(const float4* x, float4* y, long long n4) {}",
                              "ceil_div(x0.numel, 1024)", ("x0", "y0", "x0.numel // 4")), Status.RUNTIME_ERROR),
    ],
)  # fmt: skip
def test_a_bad_plan_gets_its_status_and_the_next_is_judged_as_ever(name, candidate, status):
    print(name)
    verdict = verdict_of(RELU, candidate)
    assert verdict.status is status
    assert verdict_of(RELU, RELU_PLAN).correct


def test_a_warm_plan_takes_less_than_a_second():
    took = []
    for i in range(6):
        start = time.perf_counter()
        assert verdict_of(CHAIN, plan_of("chain", CHAIN_KERNEL + f"\n// {i}")).correct
        took.append(time.perf_counter() - start)
    print("warm plan verdicts, s:", [round(t, 3) for t in took])
    assert statistics.median(took) < 1.5


def test_measure_reports_baselines_floor_and_controls():
    from sandbox.judge import measure

    start = time.perf_counter()
    measured = measure(CHAIN, backend="cuda", limits=LIMITS)
    print(time.perf_counter() - start, measured)
    assert measured.invalid is None and measured.eager_ms > measured.compile_ms > measured.floor_ms > 0 and all(measured.controls.values())


def test_cupy_is_correct_and_without_credit_where_calls_are_short():
    verdict = verdict_of(
        RELU, cupy_of("chain", CHAIN_KERNEL.replace("fmaxf(x[i] * 0.5f + 1.0f, 0.0f) / (1.0f + expf(-x[i]))", "fmaxf(x[i], 0.0f)"))
    )
    assert verdict.correct and "own_share_static" in verdict.flags
    assert (verdict.speedup is None) == ("below_resolution" in verdict.flags)


def test_cupy_gets_credit_on_long_calls():
    verdict = verdict_of(LARGE, cupy_of("chain", CHAIN_KERNEL))
    plan = verdict_of(LARGE, CHAIN_PLAN)
    assert verdict.correct and plan.correct
    print("tier 1 against tier 2:", verdict.speedup, plan.speedup)
    if verdict.speedup is not None:
        assert 0.8 < verdict.speedup["eager"][1] / plan.speedup["eager"][1] < 1.25


@pytest.mark.parametrize(
    ("name", "candidate", "status"),
    [
        ("stale", cupy_of("chain", CHAIN_KERNEL, after="self.y = y = getattr(self, 'y', y)"), Status.INCORRECT),
        ("side stream, synchronize patched", cupy_of("slow", CHAIN_KERNEL.replace("chain(", "slow(").replace("if (i < n)", "for (int k = 0; k < 200; ++k) __nanosleep(100000); if (i < n)"),
            launch="(lambda s: KERNEL(((n + 255) // 256,), (256,), (x.data_ptr(), y.data_ptr(), n), stream=s))(SIDE)",
            head="SIDE = cupy.cuda.Stream(non_blocking=True)\ntorch.cuda.synchronize = lambda *a: None"), Status.INCORRECT),
        ("endless", cupy_of("chain", CHAIN_KERNEL.replace("if (i < n)", "while (n > 0 && ((volatile const float*)x)[0] < 1e30f) {} if (i < n)")), Status.TIMEOUT),
        ("far", cupy_of("chain", CHAIN_KERNEL.replace("if (i < n)", "if (i == 0) y[1ll << 45] = 1.0f; if (i < n)")), Status.RUNTIME_ERROR),
        ("exit", cupy_of("chain", CHAIN_KERNEL, before="__import__('os')._exit(0)"), Status.RUNTIME_ERROR),
        ("compile", cupy_of("chain", CHAIN_KERNEL.replace("expf", "undefined")), Status.COMPILE_ERROR),
        ("uninitialised", cupy_of("chain", CHAIN_KERNEL, launch="pass"), Status.INCORRECT),
    ],
)  # fmt: skip
def test_a_bad_module_gets_its_status_and_the_next_is_judged_as_ever(name, candidate, status):
    print(name)
    limits = dataclasses.replace(LIMITS, build_s=12.0)
    verdict = verdict_of(CHAIN, candidate, policy="mixed", limits=limits)
    assert verdict.status is status
    assert verdict_of(CHAIN, cupy_of("chain", CHAIN_KERNEL), limits=limits).correct


def test_host_code_is_shut_in():
    look = (
        "raise RuntimeError(repr({'uid': os.getuid(), 'pid': os.getpid(), 'net': os.listdir('/sys/class/net') if os.path.exists('/sys/class/net') else None, "
        "'env': sorted(os.environ), 'root': os.access('/root', os.R_OK | os.X_OK), 'write': [p for p in ('/', '/usr', '/etc', '/root', '/dev') if os.access(p, os.W_OK)], "
        "'fds': len(os.listdir('/proc/self/fd')), 'processes': [p for p in os.listdir('/proc') if p.isdigit()]}))"
    )
    verdict = verdict_of(CHAIN, cupy_of("chain", CHAIN_KERNEL, before=look, head="import os"), policy="mixed")
    assert verdict.status is Status.RUNTIME_ERROR and "'uid': 6" in verdict.reason and "'write': []" in verdict.reason
    assert verdict.environment["isolation"].startswith("uid, namespaces")


def test_an_exported_plan_is_a_correct_module():
    for task, candidate in ((SOFTMAX, SOFTMAX_PLAN), (LINEAR, LINEAR_PLAN)):
        source = export(candidate, task)
        assert verdict_of(task, Candidate(format="cupy", files={"model_new.py": source}), policy="mixed").correct


def test_triton_compiles_inside_the_confinement():
    text = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def chain(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(v * 0.5 + 1.0, 0.0) / (1.0 + tl.exp(-v)), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        chain[((x.numel() + 1023) // 1024,)](x, y, x.numel(), BLOCK=1024)
        return y
"""
    assert verdict_of(CHAIN, Candidate(format="triton", files={"model_new.py": text})).correct


def test_kernels_built_by_nvcc_are_a_correct_module():
    kernel = CHAIN_KERNEL.replace('extern "C" ', "") + (
        '\nextern "C" void run(const float* x, float* y, long long n) { chain<<<(unsigned)((n + 255) / 256), 256>>>(x, y, n); }\n'
    )
    text = """import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.run(x, y, x.numel())
        return y
"""
    good = {"kernels/chain.cu": kernel, "model_new.py": text}
    assert verdict_of(CHAIN, Candidate(format="cuda_extension", files=good)).correct
    bad = good | {"kernels/chain.cu": kernel.replace("expf", "undefined")}
    assert verdict_of(CHAIN, Candidate(format="cuda_extension", files=bad)).status is Status.COMPILE_ERROR


def test_load_inline_compiles_inside_the_confinement():
    """The format of most published kernels."""
    binding = """
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    chain<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""
    text = f'''import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""{CHAIN_KERNEL.replace('extern "C" ', "")}{binding}"""
extension = load_inline(name="chain", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=SOURCE, functions=["run"])


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x)
'''
    limits = dataclasses.replace(LIMITS, build_s=200.0)
    verdict = verdict_of(CHAIN, Candidate(format="load_inline", files={"model_new.py": text}), limits=limits)
    assert verdict.correct, verdict.reason
    bad = verdict_of(CHAIN, Candidate(format="load_inline", files={"model_new.py": text.replace("expf", "undefined")}), limits=limits)
    assert bad.status is Status.COMPILE_ERROR and "undefined" in bad.reason
