"""The static check explains itself, refuses what policy forbids, and leaves honest spellings alone."""

import pytest

from data.records import Candidate, Status
from sandbox import build
from sandbox.backends import Failed
from sandbox.check import check_candidate

KERNEL = 'extern "C" void k(const float* x, float* out, long long n) {}'
HEAD = "import torch\nimport torch.nn as nn\nimport cuda_extension\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"


def candidate(body: str, kernel: str = KERNEL, head: str = HEAD) -> Candidate:
    text = head + "".join(f"        {line}\n" for line in body.splitlines())
    return Candidate(format="cuda_extension", files={"model_new.py": text, "kernels/kernel.cpp": kernel})


GOOD = "out = torch.empty_like(x)\ncuda_extension.k(x, out, x.numel())\nreturn out"


@pytest.mark.parametrize(
    "body",
    [
        GOOD,
        "x = x.contiguous()\nrows, n = x.shape[0], x.numel() // x.shape[0]\nout = x.new_empty(rows, n)\ncuda_extension.k(x, out, rows * n)\nreturn out.view(x.shape)",
        "n = x.shape[-1]\nassert n % 4 == 0, 'width'\nif x.dim() != 2:\n    raise ValueError('no')\n" + GOOD,
        "rows = 1\nfor size in x.shape[:-1]:\n    rows *= size\nout = torch.empty((rows,), dtype=torch.float32, device=x.device)\ncuda_extension.k(x, out, rows)\nreturn out",
        '"""This docstring says pass, os, eval and no torch.relu used."""\n' + GOOD,
        "with torch.no_grad():\n    out = torch.empty_like(x)\n    cuda_extension.k(x.view(-1), out.view(-1), max(1, int(x.numel())))\nreturn out",
        "run = cuda_extension.k\nout = torch.empty_like(x)\nrun(x, out, x.numel())\nreturn out",
    ],
)
def test_honest_spellings_pass_every_policy(body):
    for policy in ("own_kernels_only", "libraries_allowed", "mixed"):
        check_candidate(candidate(body), policy=policy)


@pytest.mark.parametrize(
    "body",
    [
        "return torch.matmul(x, x)",
        "return x @ x",
        "return torch.nn.functional.relu(x)",
        "return x.relu()",
        "return -x",
        "return abs(x)",
        "return sum([x, x])",
        "return x + 1",
        "x += 1\nreturn x",
        "return nn.ReLU()(x)",
        "return (lambda v: v.exp())(x)",
        "return torch.ops.aten.relu(x)",
        "return [v.relu() for v in (x,)][0]",
        "f = torch.relu\nreturn f(x)",
    ],
)
def test_every_spelling_of_library_work_is_refused_beside_a_kernel(body):
    spelled = candidate("out = torch.empty_like(x)\ncuda_extension.k(x, out, 1)\n" + body)
    for policy in ("own_kernels_only", "libraries_allowed"):
        with pytest.raises(Failed) as failed:
            check_candidate(spelled, policy=policy)
        assert failed.value.status is Status.REJECTED and failed.value.rule
    check_candidate(spelled, policy="mixed")


def test_a_kernel_that_is_never_called_is_no_kernel():
    with pytest.raises(Failed) as failed:
        check_candidate(candidate("return x.clone()"), policy="libraries_allowed")
    assert failed.value.rule == "no_kernel"


def test_sidecar_modules_are_read_too():
    main = candidate(GOOD, head="import side\n" + HEAD)
    with pytest.raises(Failed) as failed:
        check_candidate(Candidate(format="cuda_extension", files=main.files | {"side.py": "import os\n"}), policy="libraries_allowed")
    assert failed.value.rule == "import"


def test_comments_and_strings_of_a_kernel_trip_nothing_but_code_after_a_floor_division_does():
    check_candidate(candidate(GOOD, "// fork() system() dlopen\n/* open(1) */\n" + KERNEL), policy="libraries_allowed")
    with pytest.raises(Failed):
        check_candidate(candidate("n = 7 // 2; y = torch.relu(x)\n" + GOOD), policy="libraries_allowed")


def test_signatures_are_read_from_single_functions_and_blocks():
    source = """
    #include <cstdint>
    static inline float helper(float v) { return v; }
    extern "C" void one(const float *__restrict__ x, double* y, int64_t n, long long m, int k, float a, double b) { if (n) { y[0] = helper(a); } }
    extern "C" {
    void two(const int* ids, unsigned char* mask, bool flag) { for (;;) { break; } }
    void three() {}
    }
    """
    assert build.exported(source) == {
        "one": [
            ("pointer", "float"),
            ("pointer", "double"),
            ("int", "int64_t"),
            ("int", "long long"),
            ("int", "int"),
            ("float", "float"),
            ("float", "double"),
        ],
        "two": [("pointer", "int"), ("pointer", "unsigned char"), ("int", "bool")],
        "three": [],
    }


def test_no_function_and_unknown_types_are_format_errors():
    for kernel in ("void k(float* x) {}", 'extern "C" void k(std::vector<float> x) {}'):
        with pytest.raises(Failed) as failed:
            build.signatures(candidate(GOOD, kernel))
        assert failed.value.status is Status.FORMAT_ERROR


CUPY = """import cupy
import torch
from torch import nn

KERNEL = cupy.RawModule(code='extern "C" __global__ void k(const float* x, float* o, long long n) {}').get_function("k")


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL((1,), (256,), (x.data_ptr(), out.data_ptr(), cupy.int64(x.numel())))
        return out
"""


def test_kernels_of_cupy_pass_and_its_array_functions_are_refused():
    def check(source):
        check_candidate(Candidate(format="cupy", files={"model_new.py": source}), policy="own_kernels_only", backend="cuda")

    check(CUPY)
    check(CUPY.replace("KERNEL = cupy.RawModule", "MODULE = cupy.RawModule").replace('.get_function("k")', '\nKERNEL = MODULE.get_function("k")'))
    for work in ("cupy.maximum(cupy.asarray(x), 0)", "cupy.fuse()", "cupy.cuda.cublas.sgemm()"):
        with pytest.raises(Failed) as caught:
            check(CUPY.replace("        return out", f"        {work}\n        return out"))
        assert (caught.value.status, caught.value.rule) == (Status.REJECTED, "library_call")
    with pytest.raises(Failed, match="no kernel"):
        check(CUPY.replace("            KERNEL((1,), (256,), (x.data_ptr(), out.data_ptr(), cupy.int64(x.numel())))\n", "            pass\n"))


WAYS_AROUND = {
    "the name forward bound to a kernel": ("", "forward = cuda_extension.k\n", "return torch.softmax(x, -1)"),
    "a jit of one's own": ("", "def jit(f):\n    return f\n\n\n@jit\ndef soft(x):\n    return torch.softmax(x, -1)\n", "return soft(x)"),
    "load is not a loader": ("", "load = torch.softmax\n", "return load(x, -1)"),
    "an attribute named like a loader": ("self.load = nn.Softmax(-1)", "", "return self.load(x)"),
    "a method of an attribute named like a loader": ("self.load = nn.Softmax(-1)", "", "return self.load(x).view(-1)"),
    "what a kernel returns": ("", "", "y = cuda_extension.k(x, x, 1)\ny = x\nreturn y.softmax(-1)"),
    "arithmetic on what a kernel returns": ("", "", "return cuda_extension.k(x, x, 1) + 1"),
    "a function handed to reduce": ("", "import functools\n", "return functools.reduce(torch.matmul, (x, x))"),
    "a function handed to max": ("", "", "return max([x, x], key=torch.sum)"),
    "an imported function handed on": ("", "from torch import matmul\nimport functools\n", "return functools.reduce(matmul, (x, x))"),
    "collectives of torch.cuda": ("", "", "return torch.cuda.comm.reduce_add((x, x))"),
    "a module behind a function's name": ("self.soft = nn.Softmax(-1)", "def soft(x):\n    return x\n", "return self.soft(x)"),
    "a function rebound": ("", "def soft(x):\n    return x\n\n\nsoft = torch.relu\n", "return soft(x)"),
    "a builtin rebound": ("", "repr = torch.relu\n", "return repr(x)"),
    "an import rebound": ("", "import math\nmath = torch\n", "return math.relu(x)"),
}


@pytest.mark.parametrize("way", WAYS_AROUND)
def test_names_are_no_way_around_the_policy(way):
    init, module, body = WAYS_AROUND[way]
    init = f"    def __init__(self):\n        super().__init__()\n        {init}\n\n" if init else ""
    head = HEAD.replace("class ModelNew(nn.Module):\n", f"{module}\n\nclass ModelNew(nn.Module):\n{init}")
    spelled = candidate("out = torch.empty_like(x)\ncuda_extension.k(x, out, 1)\n" + body, head=head)
    for policy in ("own_kernels_only", "libraries_allowed"):
        with pytest.raises(Failed) as caught:
            check_candidate(spelled, policy=policy)
        assert caught.value.status is Status.REJECTED
