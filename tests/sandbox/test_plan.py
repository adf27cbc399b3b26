import json

import pytest

from data.records import Candidate, Task
from sandbox.device_code import PRELUDE, PlanError
from sandbox.export import export
from sandbox.expression import ExpressionError, parse_expression, python_of, value_of
from sandbox.plan import Tensor, bind, parse

KERNEL = 'extern "C" __global__ void scale(const float* __restrict__ x, float* __restrict__ y, long long n, int cols, float a) {}'
PLAN = {
    "let": {"n": "x0.numel", "cols": "x0.shape[-1]"},
    "buffers": {"t0": {"dtype": "float32", "shape": ["n // cols", "cols"]}, "t1": {"view": "t0", "shape": ["n"]}},
    "outputs": {"y0": {"like": "x0"}},
    "steps": [
        {"kernel": "scale", "grid": ["ceil_div(n, 256)"], "block": [256], "args": ["x0", "t0", "n", "cols", 0.5]},
        {
            "kernel": "scale",
            "grid": ["min(n, 7)", 2],
            "block": ["next_pow2(cols)"],
            "shared": "cols * 4",
            "args": ["t1", "y0", 3, "n % 7", 2],
        },
    ],
}
INPUTS = {"x0": Tensor(shape=(8, 100), dtype="float32")}


def files(plan=PLAN, kernel=KERNEL):
    return {"kernels.cu": kernel, "plan.json": plan if isinstance(plan, str) else json.dumps(plan)}


def evaluate(text, **known):
    return value_of(parse_expression(text), lambda name, index: known[name] if index is None else known[name][index])


@pytest.mark.parametrize(
    ("text", "value"),
    [("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("-7 // 2", -4), ("7 % 4 - 1", 2), ("ceil_div(9, 4)", 3), ("min(3, max(1, 2), 5)", 2), ("next_pow2(5)", 8),
     ("next_pow2(0)", 1), ("a * -b", -6), ("--a", 2), (12, 12)],
)  # fmt: skip
def test_expressions_follow_integer_arithmetic(text, value):
    assert evaluate(text, a=2, b=3) == value


@pytest.mark.parametrize("text", ["1 +", "a b", "a ** b", "1 / 2", "__import__('os')", "a[b]", "a[1.5]", "min(1)", "f(1)", "", "(" * 60 + "1" + ")" * 60, True, None, 2**63,
                                  "1" * 201, "a.b()", "a;b", "lambda: 1"])  # fmt: skip
def test_text_that_is_no_expression_is_refused(text):
    with pytest.raises(ExpressionError, match=r"got .*wanted"):
        evaluate(text, a=1, b=1)


def test_values_beyond_62_bits_and_division_by_zero_are_refused():
    for text in ("a * a * a * a", "1 // (a - a)", "a % 0", "ceil_div(a, 0)"):
        with pytest.raises(ExpressionError):
            evaluate(text, a=1 << 20)


def test_python_spelling_of_an_expression_has_the_same_value():
    for text in ("ceil_div(a + 3, b) * -2", "next_pow2(a) % 7", "min(a, b) - max(a, b, 9)"):
        assert eval(python_of(parse_expression(text), lambda name, _: name), {"a": 37, "b": 5}) == evaluate(text, a=37, b=5)


def test_a_bound_plan_holds_numbers_only():
    bound = bind(parse(files()), INPUTS, {})
    assert (
        bound.outputs["y0"] == INPUTS["x0"]
        and bound.buffers["t0"].shape == (8, 100)
        and bound.views["t1"] == ("t0", Tensor(shape=(800,), dtype="float32"))
    )
    first, second = bound.launches
    assert (first.grid, first.block, first.shared) == ((4, 1, 1), (256, 1, 1), 0)
    assert first.args == (("pointer", "x0"), ("pointer", "t0"), ("int", 8, 800), ("int", 4, 100), ("float", 4, 0.5))
    assert (second.grid, second.block, second.shared) == ((7, 2, 1), (128, 1, 1), 400)
    assert second.args[2:] == (("int", 8, 3), ("int", 4, 800 % 7), ("float", 4, 2.0))


def change(path, value):
    plan = json.loads(json.dumps(PLAN))
    at = plan
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return plan


@pytest.mark.parametrize(
    ("plan", "says"),
    [("{", "invalid JSON"), ("[]", "an object"), ('{"let": {}, "let": {}}', "each key once"), (change(["extra"], 1), "only let, buffers"),
     (change(["steps"], []), "1 to 64 steps"), (change(["steps", 0, "kernel"], "absent"), "an entry of kernels.cu"), (change(["steps", 0, "args"], ["x0"]), "5 arguments"),
     (change(["steps", 0, "args", 0], "n"), "a tensor"), (change(["steps", 0, "args", 2], 0.5), "an integer"), (change(["steps", 0, "args", 4], "n"), "finite number"),
     (change(["steps", 0, "grid"], []), "1 to 3 expressions"), (change(["steps", 0, "grid"], ["m"]), "a name of let"), (change(["let", "x0"], 1), "not x0"),
     (change(["outputs"], {"y1": {"like": "x0"}}), "y0, y1"), (change(["outputs"], {}), "at least one"), (change(["buffers", "t0", "dtype"], "float8"), "float32"),
     (change(["buffers", "t0"], {"like": "x0", "shape": []}), "like, or dtype and shape"), (change(["steps", 0], {"gemm": {"a": "x0"}}), "a, b, out"),
     (change(["steps", 0], {"copy": {"from": "x0", "to": "x0"}}), "a buffer or an output to write"), (change(["steps", 0], {"shell": "ls"}), "kernel, gemm"),
     (change(["steps"], [{"fill": {"to": "t0", "value": 0.0}}]), "at least one kernel"), (change(["steps", 0, "args", 0], "y3"), "a tensor")],
)  # fmt: skip
def test_what_is_no_plan_is_told_with_got_and_wanted(plan, says):
    with pytest.raises(PlanError, match=r"got .*wanted") as error:
        parse(files(plan))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [(["steps", 0, "grid"], ["n - n"], "each from 1"), (["steps", 0, "grid"], [1, 70000], "each from 1"), (["steps", 0, "block"], [64, 32], "1024 threads"),
     (["steps", 0, "shared"], "n * 1000", "bytes"), (["let", "n"], "cols * n", "no circle"), (["buffers", "t1", "shape"], ["n + 1"], "as in t0"),
     (["steps", 0, "args", 3], "n * n * n * n", "fits int cols"), (["let", "n"], "x0.shape[2]", "an index"), (["let", "n"], "x1", "an integer"),
     (["buffers", "t2"], {"dtype": "float64", "shape": ["n * n", "cols * 1000"]}, "bytes"), (["steps", 0, "args", 0], "p.weight", "this task's tensors"),
     (["buffers", "t0", "shape"], ["0 - 1", "cols"], "dimensions from 0")],
)  # fmt: skip
def test_sizes_that_do_not_fit_the_shapes_are_refused_when_bound(path, value, says):
    with pytest.raises(PlanError) as error:
        bind(parse(files(change(path, value))), INPUTS, {})
    assert says in str(error.value)


@pytest.mark.parametrize(
    "text",
    ['#include "/etc/passwd"', "#include </etc/passwd>", "#include <../../etc/passwd>", "# /* */ include </etc/passwd>", "#inc\\\nlude </etc/passwd>", "%:include </etc/passwd>",
     "??=include </etc/passwd>", "#define H </etc/passwd>\n#include H", "#pragma push_macro", "#embed </etc/passwd>", "#line 3 \"x\"", "#error x",
     "int a = 1'000; // ' /*\n#include </etc/passwd>\n/* */", '_Pragma("once")', "#if __has_include(</etc/passwd>)\n#endif", 'auto s = R"(/*)";\n#include </etc/passwd>\n/**/',
     "#if 0\ndon't /*\n#endif\n#include </etc/passwd>\n/* */", "/* */ #include </etc/passwd>", "#include_next <a>"],
)  # fmt: skip
def test_device_code_cannot_reach_the_judges_files(text):
    with pytest.raises(PlanError):
        parse(files(kernel=text + "\n" + KERNEL))


def test_honest_headers_directives_and_signatures_are_taken():
    text = """#include <cuda_fp16.h>
    #define N 4  // a comment's apostrophe
    template <int K> __device__ float f(float v) { return v * K; }
    extern "C" {
    __global__ void __launch_bounds__(256) one(const __half * x, unsigned int n, double d, size_t s, bool b, const int64_t) { const char c = '/'; }
    }
    extern "C" __global__ void two() {
    #pragma unroll
    for (int i = 0; i < N; ++i) {} }"""
    plan = {"outputs": {"y0": {"like": "x0"}}, "steps": [{"kernel": "two", "grid": [1], "block": [1], "args": []}]}
    parsed = parse(files(plan, text))
    assert [(p.kind, p.bytes) for p in parsed.kernels["one"]] == [
        ("pointer", 8),
        ("int", 4),
        ("float", 8),
        ("int", 8),
        ("int", 1),
        ("int", 8),
    ]
    assert parsed.kernels["two"] == ()


def test_scalar_arguments_of_forward_reach_kernels_by_name():
    plan = change(["steps", 0, "args", 4], "x1")
    assert bind(parse(files(plan)), INPUTS, {"x1": 3.14}).launches[0].args[4] == ("float", 4, 3.14)
    with pytest.raises(PlanError):
        bind(parse(files(plan)), INPUTS, {})


GEMM = {
    "let": {"n": "y0.numel"},
    "outputs": {"y0": {"dtype": "float32", "shape": ["x0.shape[0]", "p.linear.weight.shape[0]"]}},
    "steps": [
        {"gemm": {"a": "x0", "b": "p.linear.weight", "out": "y0", "trans_b": True}},
        {"kernel": "scale", "grid": ["ceil_div(n, 256)"], "block": [256], "args": ["y0", "y0", "n", 1, 2.0]},
    ],
}


def test_library_steps_are_known_before_anything_runs():
    assert parse(files(GEMM)).library_steps == ("gemm",) and parse(files(GEMM)).launched == ("scale",)


def test_an_exported_plan_is_a_module_with_the_tasks_parameters():
    candidate = Candidate(format="plan", files=files(GEMM))
    with pytest.raises(ValueError, match="wanted the task"):
        export(candidate)
    source = export(candidate, Task(source="from torch import nn\nclass Model(nn.Module):\n    pass", origin="user"))
    compile(source, "model_new.py", "exec")
    for line in (
        "class ModelNew(Model):",
        "p_linear_weight = state['linear.weight'].contiguous()",
        "y0 = torch.empty([x0.shape[0], p_linear_weight.shape[0]]",
    ):
        assert line in source
    assert source.index("y0 = torch.empty") < source.index("n = y0.numel()") < source.index("torch.matmul(")


def test_nvrtc_compiles_for_a_card_without_a_card():
    from sandbox import cudriver

    try:
        cudriver.nvrtc()
    except cudriver.CudaError:
        pytest.skip("no libnvrtc here")
    body = 'extern "C" __global__ void f(float* y, int64_t n) { y[n] = -INFINITY; }'
    cubin, _ = cudriver.compile_source(PRELUDE + body, "sm_90")
    assert cubin[:4] == b"\x7fELF"
    with pytest.raises(cudriver.CudaError) as error:
        cudriver.compile_source(PRELUDE + body.replace("y[n]", "z[n]"), "sm_90")
    assert "kernels.cu(1)" in error.value.log and '"z" is undefined' in error.value.log


def test_driver_structures_have_the_layout_of_cuda_h():
    import ctypes

    from sandbox import cudriver

    prop = cudriver._AllocationProp
    assert (ctypes.sizeof(prop), prop.win32.offset, prop.flags.offset, ctypes.sizeof(cudriver._AccessDesc)) == (32, 16, 24, 12)
