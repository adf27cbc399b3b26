"""Row code as CUDA: one block a row, its row in shared memory; as a launch plan (`plan`) or as a module with CuPy (`cupy`)."""

from __future__ import annotations

import dataclasses
import json
import re

from data.listing import constructor
from data.trace import Graph
from policy.kernels_cpp import Schedule, Writer
from policy.rowcode import Program

SHARED_BYTES = 160 << 10
"""Rows beyond this stand in a scratch tensor instead of shared memory."""
DEFAULT_SHARED_BYTES = 48 << 10
"""What a kernel may use without asking."""
REDUCE = """__device__ double all(double v, bool top) {
__shared__ double w[33];
for (int k = 16; k > 0; k /= 2) { double x = __shfl_xor_sync(~0u, v, k); v = top ? fmax(v, x) : v + x; }
if (threadIdx.x % 32 == 0) w[threadIdx.x / 32] = v;
__syncthreads();
v = w[0];
for (int k = 1; k < blockDim.x / 32; k++) v = top ? fmax(v, w[k]) : v + w[k];
__syncthreads();
return v; }
"""
ROW = "#define EACH for (long long j = threadIdx.x; j < n; j += blockDim.x)\n"
FLAT = "#define EACH for (long long j = blockIdx.x * (long long)blockDim.x + threadIdx.x; j < n; j += (long long)gridDim.x * blockDim.x)\n"
EACH_THREAD = 4
"""Elements of a flat program that one thread takes: with unrolling that many loads are under way at once (docs/log.md)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch(Schedule):
    """A layout on the GPU. block: threads of a block, a multiple of 32."""

    block: int = 256

    @property
    def plan(self) -> str:
        return f"plan: block {self.block}"


def launches(program: Program, graph: Graph) -> tuple[Launch, ...]:
    """Layouts worth trying, the best guess first: 16 elements of a row a thread, between two warps and a whole block."""
    if program.flat:
        return (Launch(block=256), Launch(block=512))
    columns = _main(program, graph)[1][-1]
    best = min(1024, max(64, 1 << (columns // 16).bit_length() - 1)) if columns >= 16 else 64
    return (Launch(block=best), Launch(block=best // 2 if best == 1024 else best * 2))


def _main(program: Program, graph: Graph) -> tuple[int, tuple[int, ...]]:
    """Position and shape of the input whose rows the program walks."""
    at = next(i for i, node in enumerate(graph.inputs) if node.name == program.main)
    return at, graph.inputs[at].shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """Device code and what its launch needs. rows: how many row buffers it uses; scratch: whether they are a tensor of the caller's."""

    code: str
    rows: int
    scratch: bool


def kernel(program: Program, launch: Launch, columns: int) -> Kernel:
    """`run(inputs and parameters, o[, t0], m, n)` for m numbers in rows of n; flat programs get n = m."""
    lines = [_over_block(line) for line in Writer(program, launch).write()]
    lines[-1] = lines[-1].removesuffix(" }")
    body = "\n".join(lines)
    rows = 2 if "u[j]" in body else 1 if "t[j]" in body else 0
    scratch = 4 * rows * columns > SHARED_BYTES and not program.flat
    pointers = (
        [f"const float* __restrict__ {leaf.name}" for leaf in program.leaves.values()]
        + ["float* __restrict__ o"]
        + (["float* t0"] if scratch else [])
    )
    head = [f'extern "C" __global__ void run({", ".join(pointers)}, long long m, long long n) {{', "typedef float real;"]
    if program.flat:
        head += ["long long i = 0;"]
        body = re.sub(r"^EACH", f"#pragma unroll {EACH_THREAD}\nEACH", body, flags=re.MULTILINE)
    else:
        head += ["long long i = blockIdx.x * n;", "real s, a, p, q, d = -1e38f;", "double c = 0;"]
        if rows:
            head += [f"float* t = t0 + {rows} * i;" if scratch else "extern __shared__ float t[];"]
        if rows == 2:
            head += ["float* u = t + n;"]
    code = (FLAT if program.flat else REDUCE + ROW) + "\n".join([*head, body]) + "\n"
    return Kernel(code=code, rows=0 if program.flat else rows, scratch=scratch)


def _over_block(line: str) -> str:
    """A line that reads an accumulator reads it over the whole block."""
    if re.search(r"\bc = 0;", line):
        return "c = all(c, false); " + line
    return "d = all(d, true); " + line if "d = -1e38f;" in line else line


def plan_files(program: Program, launch: Launch, graph: Graph) -> dict[str, str]:
    """kernels.cu and plan.json."""
    main, full = _main(program, graph)
    made = kernel(program, launch, full[-1])
    inputs = {f"{node.name}": f"x{i}" for i, node in enumerate(graph.inputs)}
    tensors = [
        inputs[leaf.python] if leaf.python in inputs else "p." + leaf.python.removeprefix("self.") for leaf in program.leaves.values()
    ]
    x = f"x{main}"
    dims = [f"{x}.shape[{k}]" for k in range(len(full) - 1)]
    step = {"kernel": "run", "grid": ["m // n"], "block": [launch.block], "args": [*tensors, "y0", "m", "n"]}
    declared: dict = {"let": {"m": f"{x}.numel", "n": f"{x}.shape[-1]"}, "buffers": {}, "outputs": {}, "steps": [step]}
    declared["outputs"]["y0"] = {"like": x} if program.vector else {"dtype": "float32", "shape": [*dims, *([1] if program.keepdim else [])]}
    if program.flat:
        step |= {"grid": [f"ceil_div(m, {EACH_THREAD * launch.block})"], "args": [*tensors, "y0", "m", "m"]}
    elif made.scratch:
        declared["buffers"]["t0"] = {"dtype": "float32", "shape": [made.rows, "m"]}
        step["args"] = [*tensors, "y0", "t0", "m", "n"]
    elif made.rows:
        step["shared"] = f"{4 * made.rows} * n"
    if not declared["buffers"]:
        del declared["buffers"]
    return {"kernels.cu": made.code, "plan.json": json.dumps(declared) + "\n"}


def cupy_files(program: Program, launch: Launch, graph: Graph, source: str) -> dict[str, str]:
    """model_new.py with the kernel as a CuPy RawKernel on torch's stream."""
    full = _main(program, graph)[1]
    made = kernel(program, launch, full[-1])
    arguments = [leaf.python for leaf in program.leaves.values()]
    inputs = [name for name in arguments if not name.startswith("self.")]
    constants, init = constructor(source, {name.split(".")[1] for name in arguments if name.startswith("self.")})
    main = program.main
    shape = f"torch.empty_like({main})" if program.vector else f"{main}.new_empty({main}.shape[:-1]{' + (1,)' if program.keepdim else ''})"
    lines = ["import cupy, torch", "from torch import nn", *constants, "RUN = cupy.RawKernel(r'''", made.code + "''', 'run')"]
    lines += ["class ModelNew(nn.Module):", *init, f"    def forward(self, {', '.join(inputs)}):", f"        o = {shape}"]
    lines += [f"        m, n = {main}.numel(), {main}.shape[-1]"]
    pointers = [f"{name}.data_ptr()" for name in [*arguments, "o"]]
    options = ""
    if made.scratch:
        lines += [f"        t = {main}.new_empty({made.rows} * m)"]
        pointers += ["t.data_ptr()"]
    elif made.rows:
        options = f", shared_mem={4 * made.rows} * n"
        if 4 * made.rows * full[-1] > DEFAULT_SHARED_BYTES:
            lines += [f"        RUN.max_dynamic_shared_size_bytes = {4 * made.rows} * n"]
    each = EACH_THREAD * launch.block
    grid = f"((m + {each - 1}) // {each},)" if program.flat else "(m // n,)"
    sizes = "m, m" if program.flat else "m, n"
    lines += ["        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):"]
    lines += [f"            RUN({grid}, ({launch.block},), ({', '.join(pointers)}, {sizes}){options})", "        return o"]
    return {"model_new.py": "\n".join(lines) + "\n"}
