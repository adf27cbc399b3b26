"""What users of other kernel evaluators reported, one test a case: K01 to K44, on the real judge."""

import unittest.mock

import asking
import pytest
from asking import Question, light, module, task, text

X = "torch.randn(128, 256)"

# ---- tasks ----
SOFTMAX = task("return torch.softmax(x, dim=1)", "torch.rand(16, 65536)")
NORM = task("return x / x.norm()", "torch.rand(16, 256, 256)")
MSE = task("return ((p - t) ** 2).mean()", "torch.rand(512, 2048) * torch.rand(()), torch.rand(512, 2048)", arguments="p, t")
HINGE = task("return torch.clamp(1 - y * p, min=0).mean()", "torch.rand(512, 512), torch.randint(0, 2, (512,)).float() * 2 - 1", arguments="p, y")
ENTROPY, MASKED, LOOKUP = (
    {
        p: task(forward, inputs, arguments="x, k", fields=fields, precision=p)
        for p in ("fp32", "fp16", "bf16")
    }
    for forward, inputs, fields in (
        ("return F.cross_entropy(x, k)", "torch.randn(512, 10), torch.randint(0, 10, (512,))", "pass"),
        ("return x.masked_fill(k, 0.0)", "torch.randn(128, 256), torch.rand(128, 256) > 0.5", "pass"),
        ("return self.table(k) + x", "torch.randn(128, 32), torch.randint(0, 100, (128,))", "self.table = nn.Embedding(100, 32)"),
    )
)
STATEFUL = "self.h = torch.tanh(self.fc(torch.cat([x, self.h], 1)))\nreturn self.h"
STATE = "self.h = torch.randn(8, 32)\nself.fc = nn.Linear(64, 32)"
KEEPS_STATE = {p: task(STATEFUL, "torch.randn(8, 32)", fields=STATE, precision=p) for p in ("fp32", "bf16")}
CONV3D = task("return self.conv(x)", "torch.randn(2, 3, 8, 16, 16)", fields="self.conv = nn.Conv3d(3, 8, (3, 5, 7), bias=False)")
LINEAR = task("return self.fc(x)", "torch.randn(64, 16)", fields="self.fc = nn.Linear(*args)", init="16, 16")
MATMUL = task("return x @ w", "torch.randn(128, 128), torch.randn(128, 128)", arguments="x, w")
IN_PLACE = task("x.unsqueeze_(1)\nx.mul_(2)\nreturn x", "torch.randn(64, 8)")
DOUBLE = task("return x * 2", X)
RELU = task("return torch.relu(x)", X)
LOG = task("return torch.log(x)", X)
MATMUL_BF16 = task("return x @ w", "torch.randn(32, 4096), torch.randn(4096, 32)", arguments="x, w", precision="bf16")
PERMUTED = task("return x * 2 + 1", "torch.randn(8, 64, 64, 3).permute(0, 3, 1, 2)")
ALL_EMPTY = task("return x.softmax(-1)", "torch.randn(0, 5, 0)")
ONE_EMPTY = task("return torch.cat([x, e], 0) * 2", "torch.randn(128, 256), torch.randn(0, 256)", arguments="x, e")
DROPOUT, DROPOUT_EVAL = (
    task("return self.drop(x @ w)", "torch.randn(64, 64), torch.randn(64, 64)", arguments="x, w", fields="self.drop = nn.Dropout(0.5)", mode=m)
    for m in ("train", "eval")
)
RANDOM = task("return torch.rand_like(x)", X)
BATCH_NORM = {
    m: task("return self.norm(x)", "torch.randn(8, 64, 16, 16) * 3 + 5", mode=m,
            fields="self.norm = nn.BatchNorm2d(64)\nself.norm.running_mean.fill_(2.0)\nself.norm.running_var.fill_(4.0)")
    for m in ("train", "eval")
}  # fmt: skip
TOPK = task("return x.topk(4)", X)
PAIR = task("return torch.relu(x), x.sum(-1)", X)
DICT = task('return {"y": x * 2, "aux": None}', X)
NOTHING = task("return None", X)
NUMBER = task("return float(x.sum())", X)
NESTED = task("return [x * 2, [x + 1, (x - 1, x * 3)]]", X)
TINY = task("return torch.relu(x)", "torch.randn(1024)")
ARGMAX = task("return x.argmax(-1)", "torch.rand(256, 2048)")
ABOVE = task("return x > 0.5", "torch.rand(128, 256)")
HALF = task("return x * 2", X, precision="bf16")

BATCH = "m, v = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, unbiased=False)"
RUNNING = "m, v = self.norm.running_mean.view(1, -1, 1, 1), self.norm.running_var.view(1, -1, 1, 1)"
NORMALISED = "return (x - m) / torch.sqrt(v + self.norm.eps) * self.norm.weight.view(1, -1, 1, 1) + self.norm.bias.view(1, -1, 1, 1)"
NORM_FIELDS = "self.norm = nn.BatchNorm2d(64)"
UPDATE = (
    "n = x.numel() // 64\nself.norm.running_mean.mul_(0.9).add_(m.flatten(), alpha=0.1)\n"
    "self.norm.running_var.mul_(0.9).add_(v.flatten() * n / (n - 1), alpha=0.1)\nself.norm.num_batches_tracked.add_(1)\n"
)
MINUTES = "import time\nwhile True:\n    try:\n        time.sleep(10**6)\n    except BaseException:\n        pass"
TIMERS = (
    "import time\n"
    "torch.cuda.Event.elapsed_time = lambda *a: 0.001\ntime.perf_counter = time.time = time.monotonic = lambda: 0.0\n"
    "time.perf_counter_ns = time.monotonic_ns = lambda: 0\ntorch.cuda.synchronize = lambda *a: None\ntorch.allclose = torch.equal = lambda *a, **k: True\n"
    "end = time.process_time\n"
)
SLEEPS = "import select\nselect.select([], [], [], 0.005)\n"
FORGES = (
    "import atexit, json\nLINE = json.dumps({'status': 'correct', 'times_ms': {'candidate': 0.001}, 'speedup': {'eager': [9, 9, 9]}})\n"
    "print(LINE, flush=True)\natexit.register(print, LINE)\nfor name in ('result.json', 'eval_results.json', 'verdict.json'):\n    open(name, 'w').write(LINE)\n"
)
LAZY = """
class L(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        plain = [a.x @ a.w if isinstance(a, L) else a for a in args]
        return f(*plain, **(kwargs or {}))
"""
DOUBLES = 'extern "C" void my_ext(const float* x, float* y, long long n) { for (long long i = 0; i < n; i++) y[i] = x[i] %s; }'
SAME_NAME = {op: light("my_ext(x, out, x.numel())", DOUBLES % op, file="kernels/my_ext.cpp") for op in ("+ 1.0f", "* 2.0f")}
UNICODE = "# ≤ 你好 🚀\n"
PLAIN = module("return x * 2").files["model_new.py"]

QUESTIONS = {
    "K01 zeros": Question(SOFTMAX, module("return torch.zeros_like(x)")),
    "K01 honest": Question(SOFTMAX, module("return torch.softmax(x, dim=1)")),
    "K01 norm zeros": Question(NORM, module("return torch.zeros_like(x)")),
    "K01 norm honest": Question(NORM, module("return x / x.norm()")),
    "K02 a part of the rows": Question(MSE, module("return ((p[:64] - t[:64]) ** 2).mean()", arguments="p, t")),
    "K02 closed form": Question(MSE, module("s = p[0].max()\nreturn s * s / 3 - s / 2 + 1 / 3", arguments="p, t")),
    "K02 whole": Question(MSE, module("d = p - t\nreturn (d * d).mean()", arguments="p, t")),
    "K02 hinge constant": Question(HINGE, module("return torch.ones(())", arguments="p, y")),
    "K02 hinge whole": Question(HINGE, module("return F.relu(1 - p * y).mean()", arguments="p, y")),
    **{
        f"K03 {name} {p}": Question(tasks[p], module(f"assert k.dtype is torch.{dtype} and x.dtype is torch.{low}\n{forward}", arguments="x, k", fields=fields))
        for p, low in (("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16"))
        for name, tasks, dtype, forward, fields in (
            ("cross entropy", ENTROPY, "int64", "return -F.log_softmax(x, 1).gather(1, k[:, None]).mean()", "pass"),
            ("mask", MASKED, "bool", "return torch.where(k, torch.zeros_like(x), x)", "pass"),
            ("lookup", LOOKUP, "int64", "return self.table.weight[k] + x", "self.table = nn.Embedding(100, 32)"),
        )
    },
    "K04 fp32": Question(KEEPS_STATE["fp32"], module(STATEFUL, fields=STATE)),
    "K04 bf16": Question(KEEPS_STATE["bf16"], module(STATEFUL, fields=STATE)),
    "K05 raw parameter": Question(CONV3D, module("return F.conv3d(x, self.weight)", fields="self.weight = nn.Parameter(torch.randn(8, 3, 3, 5, 7))")),
    "K05 flipped": Question(CONV3D, module("return F.conv3d(x, self.weight.flip(2))", fields="self.weight = nn.Parameter(torch.randn(8, 3, 3, 5, 7))")),
    "K07 one argument more": Question(LINEAR, module("return self.fc(x)", init="i, o, block", fields="self.fc = nn.Linear(i, o)")),
    "K07 raises": Question(LINEAR, module("return self.fc(x)", init="i, o", fields="raise ValueError('tile must divide')")),
    "K07 no forward": Question(LINEAR, text("import torch.nn as nn\n\nclass ModelNew(nn.Module):\n    def __init__(self, i, o):\n        super().__init__()\n")),
    "K07 default": Question(LINEAR, module("return self.fc(x)", init="i, o, block=128", fields="self.fc = nn.Linear(i, o)")),
    "K08 zeroed": Question(MATMUL, module("x.zero_()\nw.zero_()\nreturn torch.zeros(128, 128)", arguments="x, w")),
    "K08 answers first": Question(MATMUL, module("y = x @ w\nx.fill_(1.0)\nreturn y", arguments="x, w")),
    "K08 honest": Question(MATMUL, module("return torch.mm(x, w)", arguments="x, w")),
    "K09 honest": Question(IN_PLACE, module("return (x * 2).unsqueeze(1)")),
    "K09 in place": Question(IN_PLACE, module("x.unsqueeze_(1)\nx.mul_(2)\nreturn x")),
    "K09 wrong": Question(IN_PLACE, module("return (x * 3).unsqueeze(1)")),
    "K10 uninitialised": Question(MATMUL, module("return torch.empty(128, 128)", arguments="x, w")),
    "K19 main block": Question(DOUBLE, text("from __future__ import annotations\n" + PLAIN + "\n\nif __name__ == '__main__':\n    import sys\n    sys.exit(1)\n")),
    "K19 relative import": Question(DOUBLE, text("from .utils import helper\n" + PLAIN)),
    "K19 reads its source": Question(DOUBLE, module("return x * 2", fields="import inspect\nassert 'def forward' in inspect.getsource(type(self))")),
    "K20 unicode": Question(DOUBLE, text(UNICODE + PLAIN)),
    "K20 crlf": Question(DOUBLE, text(PLAIN.replace("\n", "\r\n"))),
    "K20 byte order mark": Question(DOUBLE, text("\ufeff" + PLAIN)),
    "K20 surrogate": Question(DOUBLE, text("# \udcb2\n" + PLAIN)),
    "K20 surrogate in C++": Question(DOUBLE, light("my_ext(x, out, x.numel())", "// \udcb2\n" + DOUBLES % "* 2.0f")),
    "K20 surrogate in a string": Question(DOUBLE, module("raise ValueError('\\udcb2 and no more')")),
    "K20 nul": Question(DOUBLE, text("# \0\n" + PLAIN)),
    "K24 fingerprint": Question(MATMUL, module(
        "key = x.data_ptr(), x.shape, tuple(x.flatten()[:4].tolist())\nif key not in self.kept:\n    self.kept[key] = x @ w\nreturn self.kept[key]",
        arguments="x, w", fields="self.kept = {}")),
    "K24 pointer and version": Question(MATMUL, module(
        "key = x.data_ptr(), x._version, w.data_ptr(), w._version\nif key not in self.kept:\n    self.kept[key] = x @ w\nreturn self.kept[key]",
        arguments="x, w", fields="self.kept = {}")),
    "K24 sum": Question(MATMUL, module(
        "key = round(float(x.double().sum()), 6), x.shape\nif key not in self.kept:\n    self.kept[key] = x @ w\nreturn self.kept[key]",
        arguments="x, w", fields="self.kept = {}")),
    "K24 folded weight": Question(LINEAR, module(
        "if self.t is None:\n    self.t = self.fc.weight.t().contiguous()\nreturn torch.addmm(self.fc.bias, x, self.t)",
        fields="self.fc = nn.Linear(*args)\nself.t = None")),
    "K25 zeros": Question(RELU, module(f"{SLEEPS}return torch.zeros_like(x)", head=TIMERS)),
    "K25 right": Question(RELU, module(f"{SLEEPS}return torch.relu(x)", head=TIMERS)),
    "K25 forged": Question(RELU, module("return torch.zeros_like(x)", head=FORGES)),
    "K26 lazy": Question(MATMUL, module("y = torch.empty(128, 128).as_subclass(L)\ny.x, y.w = x, w\nreturn y", arguments="x, w", head=LAZY)),
    "K26 lazy in a tuple": Question(PAIR, module("y = torch.empty(128).as_subclass(L)\ny.x, y.w = x, x\nreturn torch.relu(x), y", head=LAZY)),
    "K26 plain": Question(PAIR, module("return x.clamp(min=0), x.sum(-1)")),
    "K29 all NaN": Question(MATMUL, module("return torch.full((128, 128), float('nan'))", arguments="x, w")),
    "K29 one NaN": Question(MATMUL, module("y = x @ w\ny[3, 5] = float('nan')\nreturn y", arguments="x, w")),
    "K29 one infinity": Question(MATMUL, module("y = x @ w\ny[3, 5] = float('inf')\nreturn y", arguments="x, w")),
    "K29 rightful NaN": Question(LOG, module("return x.log()")),
    "K29 NaN everywhere": Question(LOG, module("return torch.full_like(x, float('nan'))")),
    "K31 blocks of 32": Question(MATMUL_BF16, module(
        "y = torch.zeros(32, 32)\nfor k in range(0, 4096, 32):\n    y += x[:, k:k + 32].float() @ w[k:k + 32].float()\nreturn y.bfloat16()", arguments="x, w")),
    "K31 drops the last block": Question(MATMUL_BF16, module("return x[:, :-32] @ w[:-32]", arguments="x, w")),
    **{f"K31 four partial sums {n}": Question(MATMUL_BF16, module(
        f"# {n}\nreturn sum(x[:, k:k + 1024] @ w[k:k + 1024] for k in range(0, 4096, 1024))", arguments="x, w")) for n in range(4)},
    "K32 reads linearly": Question(PERMUTED, module("return torch.as_strided(x, (8, 3, 64, 64), (12288, 4096, 64, 1)) * 2 + 1")),
    "K32 contiguous": Question(PERMUTED, module("return x.contiguous() * 2 + 1")),
    "K32 strides of the reference": Question(PERMUTED, module("return (x.permute(0, 2, 3, 1).contiguous() * 2 + 1).permute(0, 3, 1, 2)")),
    "K32 other strides": Question(PERMUTED, module("return (x.permute(1, 2, 3, 0).contiguous() * 2 + 1).permute(3, 0, 1, 2)")),
    "K32 other shape": Question(PERMUTED, module("return (x * 2 + 1).reshape(8, 3, 4096)")),
    "K33 all empty": Question(ALL_EMPTY, module("return torch.empty(0, 5, 0)")),
    "K33 decided by the full one": Question(ONE_EMPTY, module("return x * 2 if e.numel() == 0 else None", arguments="x, e")),
    "K33 wrong on the full one": Question(ONE_EMPTY, module("return torch.zeros_like(x)", arguments="x, e")),
    "K33 fails on the empty one": Question(ONE_EMPTY, module("return x * 2 + e.max()", arguments="x, e")),
    "K34 dropout": Question(DROPOUT, module("return self.drop(x @ w)", arguments="x, w", fields="self.drop = nn.Dropout(0.5)")),
    "K34 no dropout": Question(DROPOUT, module("return x @ w", arguments="x, w")),
    "K34 eval": Question(DROPOUT_EVAL, module("return x @ w", arguments="x, w")),
    "K34 random": Question(RANDOM, module("return torch.zeros_like(x)")),
    **{
        f"K35 {name} {m}": Question(BATCH_NORM[m], module(forward, fields=NORM_FIELDS))
        for m in ("train", "eval")
        for name, forward in (
            ("batch statistics", f"{BATCH}\n{UPDATE if m == 'train' else ''}{NORMALISED}"),
            ("running statistics", f"{RUNNING}\n{NORMALISED}"),
            ("changes a buffer", f"{BATCH}\n{UPDATE}self.norm.running_mean += 1\n{NORMALISED}"),
        )
    },
    "K36 named tuple": Question(TOPK, module("return torch.topk(x, 4)")),
    "K36 tuple for named tuple": Question(TOPK, module("return tuple(x.topk(4))")),
    "K36 swapped": Question(TOPK, module("v, i = x.topk(4)\nreturn i, v")),
    "K36 dict": Question(DICT, module('return {"y": x + x, "aux": None}')),
    "K36 a key is missing": Question(DICT, module('return {"y": x + x}')),
    "K36 a tensor for None": Question(DICT, module('return {"y": x + x, "aux": x}')),
    "K36 nothing": Question(NOTHING, module("return None")),
    "K36 number": Question(NUMBER, module("return float(x.double().sum())")),
    "K36 nested": Question(NESTED, module("return [x + x, [x + 1, (x - 1, x * 3)]]")),
    "K36 nested, last one wrong": Question(NESTED, module("return [x + x, [x + 1, (x - 1, x * 4)]]")),
    "K36 list for tuple": Question(PAIR, module("return [torch.relu(x), x.sum(-1)]")),
    "K37 sixty-four copies": Question(RELU, module("self.kept.append(torch.ones(1 << 28))\nreturn torch.relu(x)", fields="self.kept = []")),
    "K37 next": Question(RELU, module("return x.relu()")),
    "K38 tiny": Question(TINY, module("return x.relu()")),
    "K38 tiny and slower": Question(TINY, module("for _ in range(20):\n    y = x.relu()\nreturn y")),
    "K42 preallocated": Question(DOUBLE, module(
        "if self.out is None:\n    self.out = torch.empty_like(x)\nreturn torch.mul(x, 2, out=self.out)", fields="self.out = None")),
    "K43 falls back": Question(RELU, module("return torch.relu(x)", head=(
        "from torch.utils.cpp_extension import load_inline\ntry:\n    ext = load_inline(name='e', cpp_sources='nonsense')\nexcept Exception:\n    pass\n")), "libraries_allowed"),
    "K43 inherits": Question(RELU, text("import torch\n\nclass ModelNew(Model):\n    pass\n"), "libraries_allowed"),
    "K43 one element": Question(RELU, light("one(x, out, 1)\nout = torch.relu(x)", DOUBLES.replace("my_ext", "one") % "* 1.0f"), "libraries_allowed"),
    "K43 honest": Question(RELU, light("keep(x, out, x.numel())", DOUBLES.replace("my_ext", "keep").replace("%s", "> 0.0f ? x[i] : 0.0f"),
                           head='# we try: no except, no fallback to torch.relu\n"""Never calls torch.relu, at::relu or cuBLAS."""\n'), "libraries_allowed"),
    "K44 next index": Question(ARGMAX, module("return (x.argmax(-1) + 1) % 2048")),
    "K44 honest": Question(ARGMAX, module("return torch.max(x, -1).indices")),
    "K44 one bool flipped": Question(ABOVE, module("y = x > 0.5\ny[7, 9] = ~y[7, 9]\nreturn y")),
    "K44 int32 for int64": Question(ARGMAX, module("return x.argmax(-1).int()")),
    "K44 fp32 for bf16": Question(HALF, module("return x.float() * 2")),
}  # fmt: skip

ANY = unittest.mock.ANY
WANTED = {
    "K01 honest": ("correct", None),
    "K01 norm honest": ("correct", None),
    "K01 norm zeros": ("incorrect", None),
    "K01 zeros": ("incorrect", None),
    "K02 a part of the rows": ("incorrect", None),
    "K02 closed form": ("incorrect", None),
    "K02 hinge constant": ("incorrect", None),
    "K02 hinge whole": ("correct", None),
    "K02 whole": ("correct", None),
    "K03 cross entropy bf16": ("correct", None),
    "K03 cross entropy fp16": ("correct", None),
    "K03 cross entropy fp32": ("correct", None),
    "K03 lookup bf16": ("correct", None),
    "K03 lookup fp16": ("correct", None),
    "K03 lookup fp32": ("correct", None),
    "K03 mask bf16": ("correct", None),
    "K03 mask fp16": ("correct", None),
    "K03 mask fp32": ("correct", None),
    "K05 flipped": ("incorrect", None),
    "K05 raw parameter": ("correct", None),
    "K07 default": ("correct", None),
    "K07 no forward": ("format_error", None),
    "K07 one argument more": ("runtime_error", None),
    "K07 raises": ("runtime_error", None),
    "K08 answers first": ("incorrect", "inputs_changed"),
    "K08 honest": ("correct", None),
    "K08 zeroed": ("incorrect", "inputs_changed"),
    "K09 honest": ("correct", None),
    "K09 in place": ("correct", None),
    "K09 wrong": ("incorrect", None),
    "K10 uninitialised": ("incorrect", None),
    "K19 main block": ("correct", None),
    "K19 reads its source": ("correct", None),
    "K19 relative import": ("runtime_error", None),
    "K20 byte order mark": ("correct", None),
    "K20 crlf": ("correct", None),
    "K20 nul": ("format_error", None),
    "K20 surrogate": ("format_error", None),
    "K20 surrogate in C++": ("compile_error", None),
    "K20 surrogate in a string": ("runtime_error", None),
    "K20 unicode": ("correct", None),
    "K24 fingerprint": ("incorrect", None),
    "K24 sum": ("incorrect", None),
    "K24 folded weight": ("correct", None),
    "K24 pointer and version": ("incorrect", None),
    "K25 forged": ("incorrect", None),
    "K25 right": ("correct", None),
    "K25 zeros": ("incorrect", None),
    "K26 lazy": ("incorrect", "contract"),
    "K26 lazy in a tuple": ("incorrect", "contract"),
    "K26 plain": ("correct", None),
    "K29 NaN everywhere": ("incorrect", None),
    "K29 all NaN": ("incorrect", None),
    "K29 one NaN": ("incorrect", None),
    "K29 one infinity": ("incorrect", None),
    "K29 rightful NaN": ("correct", None),
    "K31 blocks of 32": ("correct", None),
    "K31 drops the last block": ("incorrect", None),
    "K31 four partial sums 0": ("incorrect", ANY),
    "K31 four partial sums 1": ("incorrect", ANY),
    "K31 four partial sums 2": ("incorrect", ANY),
    "K31 four partial sums 3": ("incorrect", ANY),
    "K32 contiguous": ("correct", None),
    "K32 other shape": ("incorrect", "contract"),
    "K32 other strides": ("incorrect", "contract"),
    "K32 reads linearly": ("incorrect", None),
    "K32 strides of the reference": ("correct", None),
    "K33 all empty": ("task_invalid", None),
    "K33 decided by the full one": ("correct", None),
    "K33 fails on the empty one": ("runtime_error", None),
    "K33 wrong on the full one": ("incorrect", None),
    "K34 dropout": ("task_invalid", None),
    "K34 eval": ("correct", None),
    "K34 no dropout": ("task_invalid", None),
    "K34 random": ("task_invalid", None),
    "K35 batch statistics eval": ("incorrect", None),
    "K35 batch statistics train": ("correct", None),
    "K35 changes a buffer eval": ("incorrect", None),
    "K35 changes a buffer train": ("incorrect", "buffers"),
    "K35 running statistics eval": ("correct", None),
    "K35 running statistics train": ("incorrect", None),
    "K36 list for tuple": ("incorrect", "contract"),
    "K36 dict": ("correct", None),
    "K36 a key is missing": ("incorrect", "contract"),
    "K36 a tensor for None": ("incorrect", "contract"),
    "K36 number": ("correct", None),
    "K36 nested": ("correct", None),
    "K36 nested, last one wrong": ("incorrect", None),
    "K36 named tuple": ("correct", None),
    "K36 nothing": ("task_invalid", None),
    "K36 swapped": ("incorrect", "contract"),
    "K36 tuple for named tuple": ("correct", None),
    "K37 next": ("correct", None),
    "K37 sixty-four copies": ("out_of_memory", None),
    "K38 tiny": ("correct", None),
    "K38 tiny and slower": ("correct", None),
    "K42 preallocated": ("correct", None),
    "K43 falls back": ("rejected", "torch_op"),
    "K43 honest": ("correct", None),
    "K43 inherits": ("format_error", None),
    "K43 one element": ("rejected", "torch_op"),
    "K44 fp32 for bf16": ("incorrect", "contract"),
    "K44 honest": ("correct", None),
    "K44 int32 for int64": ("incorrect", "contract"),
    "K44 next index": ("incorrect", None),
    "K44 one bool flipped": ("incorrect", None),
}
"""Status and rule of each question; ANY where chance decides which distribution shows it first."""
WRONG = {
    "K04 fp32": ("correct", "a reference that keeps state between calls is task_invalid: each answer would need a server brought to the same state"),
}
"""What the judge still gets wrong: the status that would be right, and what happens instead."""
NOT_YET = {
    "K10": "poisoned memory of a GPU; its CPU twin is here", "K11": "needs a GPU", "K12": "needs a GPU", "K13": "not written", "K14": "not written",
    "K15": "not written", "K16": "not written", "K21": "not written", "K22": "not written", "K23": "needs a GPU", "K27": "not written", "K28": "needs a GPU",
    "K41": "needs a GPU",
}  # fmt: skip
"""Cases without a question, and why. K06, K17, K18, K30, K39 and K40 concern other parts than the judge."""
ELSEWHERE = {"K06", "K17", "K18", "K30", "K39", "K40"}


@pytest.fixture(scope="module")
def found():
    return asking.ask(QUESTIONS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WANTED)
def test_a_case_has_its_outcome(name, found):
    verdict = found[name]
    assert (verdict.status.value, verdict.rule) == WANTED[name], verdict.reason


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=why)) for name, (_, why) in WRONG.items()])
def test_a_case_that_still_goes_wrong(name, found):
    assert found[name].status.value == WRONG[name][0]


def test_flags_tell_what_a_status_cannot(found):
    assert "below_resolution" in found["K38 tiny"].flags and found["K38 tiny"].speedup is None
    assert "weights_by_shape" in found["K05 raw parameter"].flags
    for name in ("K04 fp32", "K04 bf16"):
        assert found[name].status.value == "task_invalid", "never charged to the candidate"
    assert "keeps state between calls" in found["K04 fp32"].reason
    assert found["K25 right"].times_ms["candidate"] > 5.0


def test_every_case_has_a_question_or_a_reason():
    asked = {name.split()[0] for name in QUESTIONS}
    assert WANTED.keys() | WRONG.keys() | {"K04 bf16"} == QUESTIONS.keys()
    assert asked | NOT_YET.keys() | ELSEWHERE == {f"K{n:02}" for n in range(1, 45)}
