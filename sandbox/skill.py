"""SKILL.md: what the agent may know of the judge, by format and backend. Rules, layout, what is stressed, contract."""

from __future__ import annotations

from data.tools import BASIC, TABLE, wanted
from sandbox import plan

LAYOUT = {
    (
        "cuda_extension",
        "cpp",
    ): """Write two files.
- `kernels/kernel.cpp` (any name in `kernels/`): C++17 functions declared `extern "C" void name(...)`. Arguments in this order: tensors as
  pointers (`const float*`), then integers (`long`), then floating-point numbers (`double`). The judge compiles all files of `kernels/` into
  one library with `-O3 -march=native -fopenmp`; the vectorised libm may be used (`expf`, `tanhf`, ... inside plain loops).
- `model_new.py`: `import cuda_extension` and `class ModelNew(torch.nn.Module)` with the constructor arguments and the state_dict names of
  `Model`; its `forward` makes outputs with `torch.empty_like` or `torch.empty` and calls `cuda_extension.name(...)` with tensors and numbers.
One core, one thread, for the reference and for you.""",
    (
        "cuda_extension",
        "cuda",
    ): """Write two files.
- `kernels/kernel.cu` (any name in `kernels/`): device code and functions declared `extern "C" void name(...)` that launch it. Arguments in
  this order: tensors as device pointers, then integers, then floating-point numbers. The judge compiles all files of `kernels/` into one library.
- `model_new.py`: `import cuda_extension` and `class ModelNew(torch.nn.Module)` with the constructor arguments and the state_dict names of
  `Model`; its `forward` makes outputs with `torch.empty_like` or `torch.empty` and calls `cuda_extension.name(...)`.""",
    (
        "plan",
        "cuda",
    ): """Write two files; there is no host code.
- `kernels.cu`: device code only, compiled at run time; kernels declared `extern "C" __global__`.
- `plan.json`: the launches. The format:

"""
    + (plan.__doc__ or ""),
    (
        "cupy",
        "cuda",
    ): """Write `model_new.py`: `class ModelNew(torch.nn.Module)` with the constructor arguments and the state_dict names of `Model`,
and kernels as `cupy.RawKernel` or `cupy.RawModule`. Tensors are passed without copies; outputs come from `torch.empty_like` or `torch.empty`.""",
}
MODULE = """Write `model_new.py`: `class ModelNew(torch.nn.Module)` with the constructor arguments and the state_dict names of `Model`, and its kernels
in the format named above."""
POLICY = {
    "own_kernels_only": "Every kernel that runs must be yours. Allocating, viewing and copying tensors is allowed.",
    "libraries_allowed": "At least one kernel must be yours; BLAS for matrix products, cuDNN for convolutions, copies and fills are allowed. No other torch operator, neither in `ModelNew.forward` nor in C++.",
    "mixed": "Any mix of torch operators and own kernels is allowed; only what is yours is reported.",
}


def skill_text(format: str, backend: str, policy: str, tools: tuple[str, ...] = BASIC) -> str:
    """SKILL.md of a workspace. tools: names out of data/tools.py; those beyond the basic ones get a line each."""
    more = "".join(f"\n`{name}` {wanted(name)}: {TABLE[name].description}" for name in tools if name not in BASIC)
    return f"""# Write a faster `Model`

`model.py` is the task: `Model`, `get_inputs()`, `get_init_inputs()`. Write a `{format}` candidate for the backend `{backend}` whose `ModelNew`
gives the same outputs in less time. SKILL.md and model.py are read-only.

## Files
{LAYOUT.get((format, backend), MODULE)}

## Tools
`write` path content. `read` path. `compile`: does it build. `verify`: is it right. `profile`: how fast is it, against eager and torch.compile.
`submit`: done; what stands in the workspace is then judged afresh, and only that counts.{more}

## Rules ({policy})
{POLICY[policy]}
No file, process, network, timer or interpreter tricks; no torch operator by another name; no result kept from one call to the next.

## What is tested
Fresh random inputs at every call, under several distributions: the task's own, signed, scaled, shifted, heavy-tailed, structured; a few
values far outside. Parameters and buffers are randomised within their meaning (variances stay positive) and loaded with `load_state_dict`.
The tolerance follows from a float64 oracle at the task's precision and the scale of each row.

## Contract
Same type, dtype, shape and structure of outputs; inputs unchanged; outputs fresh; finite where the reference is finite. `ModelNew` may
prepare weights after loading, outside the timed calls. Shapes are those of `get_inputs()`.
"""
