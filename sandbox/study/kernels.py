"""Own tasks and candidates for the measuring programs: right, wrong and broken ones in every format, and hostile ones."""

from __future__ import annotations

import dataclasses
import json
import random

from data.records import Candidate, Task

FORMATS = {"cpp": ("cuda_extension",), "cuda": ("plan", "cupy", "triton", "cuda_extension")}
"""By backend; `cuda_extension` is the light one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """An elementwise operation: how eager torch spells it (several kernels), and one fused expression of `v` in C and in Triton."""

    name: str
    torch: str
    c: str
    triton: str


OPERATIONS = (
    Operation(
        name="swish_affine",
        torch="t = x * 1.5 + 0.25\n        return t * torch.sigmoid(t) + x",
        c="(v * 1.5f + 0.25f) / (1.0f + expf(-(v * 1.5f + 0.25f))) + v",
        triton="(v * 1.5 + 0.25) / (1.0 + tl.exp(-(v * 1.5 + 0.25))) + v",
    ),
    Operation(
        name="softsign_mix",
        torch="return x / (1.0 + torch.abs(x)) * 2.0 + x * 0.25",
        c="v / (1.0f + fabsf(v)) * 2.0f + v * 0.25f",
        triton="v / (1.0 + tl.abs(v)) * 2.0 + v * 0.25",
    ),
    Operation(
        name="hard_swish",
        torch="return x * torch.clamp(x + 3.0, 0.0, 6.0) / 6.0 + torch.relu(x) * 0.5",
        c="v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) / 6.0f + fmaxf(v, 0.0f) * 0.5f",
        triton="v * tl.minimum(tl.maximum(v + 3.0, 0.0), 6.0) / 6.0 + tl.maximum(v, 0.0) * 0.5",
    ),
    Operation(
        name="square_gate",
        torch="return (x * x + 1.0) * torch.sigmoid(x) - x * 0.125",
        c="(v * v + 1.0f) / (1.0f + expf(-v)) - v * 0.125f",
        triton="(v * v + 1.0) / (1.0 + tl.exp(-v)) - v * 0.125",
    ),
)
SHAPES = {"cpp": (512, 1536), "cuda": (8192, 16384)}
"""So that eager takes 1 to 5 ms: on one core, and on an H200."""
WRONG = ("scaled", "short", "sign")
BROKEN = ("semicolon", "undeclared", "type")


def task_of(operation: Operation, backend: str) -> Task:
    rows, columns = SHAPES[backend]
    source = f"""import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        {operation.torch}


def get_inputs():
    return [torch.randn({rows}, {columns})]


def get_init_inputs():
    return []
"""
    return Task(source=source, origin="user")


def candidate_of(operation: Operation, *, backend: str, format: str, number: int = 0, mistake: str | None = None) -> Candidate:
    """Candidate `number` (another schedule, another text) of an operation; `mistake` is None or of WRONG or BROKEN."""
    if format == "triton":
        return _triton(operation, number, mistake)
    body, last, name = operation.c, "n", "f(x[i])"
    body = {"scaled": f"1.01f * ({body})", "sign": f"-({body})", "undeclared": f"{body} + undeclared_name", "type": f"({body}) + \"text\""}.get(mistake or "", body)
    end = "" if mistake == "semicolon" else ";"
    if mistake == "short":
        last = "n - 1"
    if backend == "cpp":
        unroll = 1 << number % 5
        source = f"""#include <cmath>
// number {number}
static inline float f(float v) {{ return {body}{end} }}
extern "C" void run(const float* x, float* y, long long n) {{
    #pragma GCC unroll {unroll}
    for (long long i = 0; i < {last}; i++) y[i] = {name};
}}
"""
        return Candidate(format="cuda_extension", files={"kernels/kernel.cpp": source, "model_new.py": _MODULE.format(number=number)})
    block, items = (128, 256, 512, 1024, 64)[number % 5], (4, 1, 2, 8)[number // 5 % 4]
    kernel = f"""// number {number}
__device__ __forceinline__ float f(float v) {{ return {body}{end} }}
extern "C" __global__ void fused(const float* __restrict__ x, float* __restrict__ y, long long n) {{
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < {last}; i += stride) y[i] = {name};
}}
"""
    if format == "plan":
        step = {"kernel": "fused", "grid": [f"ceil_div(x0.numel, {block * items})"], "block": [block], "args": ["x0", "y0", "x0.numel"]}
        return Candidate(format="plan", files={"kernels.cu": kernel, "plan.json": json.dumps({"outputs": {"y0": {"like": "x0"}}, "steps": [step]})})
    if format == "cupy":
        return Candidate(format="cupy", files={"model_new.py": _CUPY.format(kernel=kernel, block=block, per=block * items)})
    host = f'extern "C" void run(const float* x, float* y, long long n) {{ fused<<<(unsigned)((n + {block * items - 1}) / {block * items}), {block}>>>(x, y, n); }}\n'
    kernel = kernel.replace('extern "C" __global__', "__global__")
    return Candidate(format="cuda_extension", files={"kernels/kernel.cu": kernel + host, "model_new.py": _MODULE.format(number=number)})


_MODULE = """# number {number}
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.run(x, y, x.numel())
        return y
"""
_CUPY = """import cupy
import torch
from torch import nn

KERNEL = cupy.RawModule(code=r'''{kernel}''', options=("-std=c++17",)).get_function("fused")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL(((n + {per} - 1) // {per},), ({block},), (x.data_ptr(), y.data_ptr(), n))
        return y
"""


def _triton(operation: Operation, number: int, mistake: str | None) -> Candidate:
    body, bound = operation.triton, "n - 1" if mistake == "short" else "n"
    body = {"scaled": f"1.01 * ({body})", "sign": f"-({body})", "undeclared": f"{body} + undeclared_name", "type": f"tl.dot({body})",
            "semicolon": f"tl.nothing({body})"}.get(mistake or "", body)  # fmt: skip
    block, warps = (1024, 2048, 512, 4096, 256)[number % 5], (4, 8, 2, 1)[number // 5 % 4]
    text = f"""# number {number}
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def fused(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < {bound})
    tl.store(y + i, {body}, mask=i < {bound})


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        fused[((x.numel() + {block} - 1) // {block},)](x, y, x.numel(), BLOCK={block}, num_warps={warps})
        return y
"""
    return Candidate(format="triton", files={"model_new.py": text})


def group(operation: Operation, *, backend: str, format: str, size: int = 16, first: int = 0) -> list[tuple[str, Candidate]]:
    """`size` different candidates in a fixed random order, as (kind, candidate): 20 % broken, 20 % wrong, 60 % right, to the nearest."""
    broken = wrong = round(0.2 * size)
    kinds = [("broken", BROKEN)] * broken + [("wrong", WRONG)] * wrong + [("right", (None,))] * (size - broken - wrong)
    made = [
        (kind, candidate_of(operation, backend=backend, format=format, number=first + i, mistake=mistakes[i % len(mistakes)]))
        for i, (kind, mistakes) in enumerate(kinds)
    ]
    random.Random(operation.name).shuffle(made)
    return made


WANTED = {
    "right": {"correct"},
    "wrong": {"incorrect"},
    "broken": {"compile_error"},
}

_HOSTILE_MODULE = """# number {number}
import os
import torch
import torch.nn as nn
{head}


class ModelNew(nn.Module):
    def forward(self, x):
{body}
"""
_ANSWER = "        return torch.zeros_like(x)"
_FAILED = {"incorrect", "runtime_error", "rejected", "timeout", "out_of_memory", "compile_error", "compile_timeout", "format_error"}
"""Every way in which a candidate can fail; never correct, never the task's fault, never a SandboxError."""

HOSTILE_HOST = {
    "crash": ("", "        os.kill(os.getpid(), 11)\n" + _ANSWER, {"runtime_error"}),
    "abort_at_import": ("os.abort()", _ANSWER, {"runtime_error"}),
    "exit_zero": ("", "        os._exit(0)", {"runtime_error"}),
    "hang": ("", "        while True:\n            pass", {"timeout"}),
    "sleeps": ("import time", "        time.sleep(1e6)", {"timeout"}),
    "fork_bomb": (
        "",
        "        for _ in range(1000):\n            try:\n                if os.fork() == 0:\n                    while True:\n                        os.fork()\n"
        "            except OSError:\n                pass\n" + _ANSWER,
        _FAILED,
    ),
    "fork_bomb_at_import": (
        "try:\n    while True:\n        os.fork()\nexcept OSError:\n    pass",
        _ANSWER,
        _FAILED,
    ),
    "memory": (
        "",
        "        kept = []\n        while True:\n            kept.append(torch.ones(1 << 26))",
        {"out_of_memory", "runtime_error", "timeout"},
    ),
    "disk": (
        "for folder in ('.', '/tmp', '/dev/shm', '/var/tmp'):\n    try:\n        with open(folder + '/{marker}', 'wb') as file:\n"
        "            for _ in range(4096):\n                file.write(bytes(1 << 20))\n    except OSError:\n        pass",
        _ANSWER,
        _FAILED,
    ),
    "writes_everywhere": (
        "for top in ('/', '/tmp', '/dev/shm', '/var/tmp', '/root', '/home', '/etc', '/usr/lib', '/opt', os.path.dirname(torch.__file__), os.getcwd(), os.path.expanduser('~')):\n"
        "    for name in ('{marker}', 'sitecustomize.py', '.{marker}/deep'):\n        try:\n            os.makedirs(os.path.dirname(os.path.join(top, name)), exist_ok=True)\n"
        "            with open(os.path.join(top, name), 'a') as file:\n                file.write('# {marker}')\n        except OSError:\n            pass",
        _ANSWER,
        _FAILED,
    ),
    "outliving_helper": (
        "import subprocess, sys\ntry:\n    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900) # {marker}'], start_new_session=True)\nexcept OSError:\n    pass\n"
        "try:\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            while True:\n                pass\n        os._exit(0)\nexcept OSError:\n    pass",
        _ANSWER,
        _FAILED,
    ),
    "threads_outlive": (
        "import threading\n\n\ndef spin():\n    while True:\n        pass\n\n\nfor _ in range(200):\n    try:\n        threading.Thread(target=spin, daemon=True).start()\n    except RuntimeError:\n        break",
        _ANSWER,
        _FAILED,
    ),
    "ignores_signals": (
        "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass",
        "        while True:\n            try:\n                while True:\n                    pass\n            except BaseException:\n                pass",
        {"timeout"},
    ),
    "prints_without_end": ("", "        while True:\n            os.write(1, bytes(1 << 16))\n            os.write(2, bytes(1 << 16))", _FAILED),
}
"""Name -> (top of the module, body of forward, statuses that are right). All of them are judged under `mixed`: the walls are meant, not the static check."""
HOSTILE_DEVICE = {
    "gpu_fault": ("if (i == 0) y[1ll << 45] = 1.0f;", {"runtime_error"}),
    "gpu_trap": ('if (i == 0) asm("trap;");', {"runtime_error"}),
    "gpu_hang": ("while (i == 0 && n > 0) { if (((volatile const float*)x)[0] > 1e30f) break; }", {"timeout"}),
    "gpu_beside": ("if (i == 0) y[n] = 1.0f; if (i == 1) y[-1] = 1.0f;", {"incorrect", "runtime_error"}),
    "gpu_input": ("if (i < 64) const_cast<float*>(x)[i] = 3.0f;", {"incorrect"}),
}
"""Name -> (what a plan's kernel does besides, statuses that are right)."""
GPU_HOARD = ("", "        kept = []\n        while True:\n            kept.append(torch.ones(1 << 30, device='cuda'))", {"out_of_memory", "runtime_error"})


def hostile_names(backend: str) -> list[str]:
    return [*HOSTILE_HOST, *([*HOSTILE_DEVICE, "gpu_memory"] if backend == "cuda" else [])]


def hostile(name: str, *, backend: str, number: int, marker: str) -> tuple[Candidate, set[str]]:
    """A hostile candidate and the statuses that are right for it. `marker` is in the name of every file and process it tries to leave."""
    if name in HOSTILE_DEVICE:
        code, wanted = HOSTILE_DEVICE[name]
        made = candidate_of(OPERATIONS[0], backend=backend, format="plan", number=number)
        source = made.files["kernels.cu"].replace("y[i] = f(x[i]);", "{ " + code + " y[i] = f(x[i]); }")
        return Candidate(format="plan", files=made.files | {"kernels.cu": source}), wanted
    head, body, wanted = GPU_HOARD if name == "gpu_memory" else HOSTILE_HOST[name]
    text = _HOSTILE_MODULE.format(number=number, head=head.replace("{marker}", marker), body=body)
    return Candidate(format="cupy" if backend == "cuda" else "load_inline", files={"model_new.py": text}), wanted
