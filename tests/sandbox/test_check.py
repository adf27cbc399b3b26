"""The static check explains itself, refuses what policy forbids, and leaves honest spellings alone."""

import subprocess

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
    check(
        CUPY.replace("KERNEL = cupy.RawModule", "MODULE = cupy.RawModule").replace(
            '.get_function("k")', '\nKERNEL = MODULE.get_function("k")'
        )
    )
    for work in ("cupy.maximum(cupy.asarray(x), 0)", "cupy.fuse()", "cupy.cuda.cublas.sgemm()"):
        with pytest.raises(Failed) as caught:
            check(CUPY.replace("        return out", f"        {work}\n        return out"))
        assert (caught.value.status, caught.value.rule) == (Status.REJECTED, "library_call")
    with pytest.raises(Failed, match="no kernel"):
        check(
            CUPY.replace("            KERNEL((1,), (256,), (x.data_ptr(), out.data_ptr(), cupy.int64(x.numel())))\n", "            pass\n")
        )


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


def module(init="", before="", body="", methods="", base="nn.Module", files=None, after="") -> Candidate:
    """A ModelNew with a kernel of its own that it calls on every input, and the lines given."""
    init = "".join(f"        {line}\n" for line in init.splitlines())
    init = f"    def __init__(self):\n        super().__init__()\n{init}\n" if init else ""
    methods = "".join(f"    {line}\n" for line in methods.splitlines())
    head = HEAD.replace("class ModelNew(nn.Module):\n", f"{before}\n\nclass ModelNew({base}):\n{init}{methods}")
    made = candidate("out = torch.empty_like(x)\ncuda_extension.k(x, out, 1)\n" + body, head=head)
    return Candidate(format=made.format, files=made.files | {"model_new.py": made.files["model_new.py"] + after, **(files or {})})


LIBRARY_WORK = {
    'reduce over getattr': ('', 'import functools', 'return functools.reduce(getattr(torch, "maximum"), (x, x))'),
    'getattr constant': ('', '', 'return getattr(torch, "relu")(x)'),
    'getattr constant method': ('', '', 'return getattr(x, "relu")()'),
    'getattr default': ('', '', 'return getattr(x, "relu", None)()'),
    'T = torch': ('', 'T = torch', 'return T.relu(x)'),
    'T = torch local': ('', '', 'T = torch\nreturn T.relu(x)'),
    'F alias': ('', 'F = torch.nn.functional', 'return F.relu(x)'),
    'from import': ('', 'from torch import relu as empty_like', 'return empty_like(x)'),
    'tuple alias': ('', 'T, N = torch, nn', 'return T.relu(x)'),
    'walrus alias': ('', '', 'return (T := torch).relu(x)'),
    'walrus fn': ('', '', 'return (f := torch.relu)(x)'),
    'for alias': ('', '', 'for f in (torch.relu,):\n    out = f(x)\nreturn out'),
    'comp alias': ('', '', 'return [f(x) for f in [torch.relu]][0]'),
    'subscript': ('', '', 'return [torch.relu][0](x)'),
    'dict': ('', "D = {'a': torch.relu}", "return D['a'](x)"),
    'starmap Tensor.relu': ('', 'import itertools', 'return list(itertools.starmap(torch.Tensor.relu, [(x,)]))[0]'),
    'map bound': ('', '', 'return list(map(x.add, [x]))[0]'),
    'map Tensor': ('', '', 'return list(map(torch.Tensor.relu, [x]))[0]'),
    'map self.act': ('self.act = nn.ReLU()', '', 'return list(map(self.act, [x]))[0]'),
    'filter': ('', '', 'return list(filter(x.copy_, [x]))[0]'),
    'sorted key': ('', '', 'return sorted([x], key=torch.relu_)[0]'),
    'partial bound': ('', 'import functools', 'return functools.partial(x.relu)()'),
    'partial var': ('', 'import functools', 'p = functools.partial(torch.relu, x)\nreturn p()'),
    'operator.add': ('', 'import operator', 'return operator.add(x, x)'),
    'operator.neg alias': ('', 'from operator import neg as n', 'return n(x)'),
    'operator.methodcaller': ('', 'import operator', "return operator.methodcaller('relu')(x)"),
    'reduce operator': ('', 'import functools, operator', 'return functools.reduce(operator.add, [x, x])'),
    'map operator': ('', 'import operator', 'return list(map(operator.neg, [x]))[0]'),
    'math.prod': ('', 'import math', 'return math.prod([x, x])'),
    'sum': ('', '', 'return sum([x, x])'),
    'sum of stored': ('', '', 'parts = []\nparts.append(x)\nreturn sum(parts)'),
    'sum of stored alias': ('', '', 'parts = []\nother = parts\nother.append(x)\nreturn parts[0] + parts[0]'),
    'store via function': ('', 'def put(l, v):\n    l.append(v)\n', 'parts = []\nput(parts, x)\nreturn parts[0] + parts[0]'),
    'accumulate': ('', 'import itertools', 'return list(itertools.accumulate([x, x]))[1]'),
    'accumulate func': ('', 'import itertools', 'return list(itertools.accumulate([x, x], torch.maximum))[1]'),
    'reduce lambda': ('', 'import functools', 'return functools.reduce(lambda a, b: a + b, (x, x))'),
    'lambda var': ('', 'add = lambda a, b: a + b', 'return add(x, x)'),
    'annotated int': ('', '', 'return self.f(x)', 'def f(self, v: int):\n    return v + v'),
    'index': ('self.table = nn.Parameter(torch.ones(4))', '', 'return self.table[x]'),
    'param ops': ('self.p = nn.Parameter(torch.ones(4))', '', 'return self.p * self.p'),
    'self.a tensor': ('', '', 'self.a = x\nreturn self.a + self.a'),
    'buffer named eps': ("self.register_buffer('eps', torch.ones(4))", '', 'self.eps.copy_(x)\nreturn self.eps + self.eps'),
    'rebound run': ('self.run = cuda_extension.k\nself.run = torch.relu', '', 'return self.run(x)'),
    'rebound run elsewhere': ('self.run = cuda_extension.k', '', 'self.swap()\nreturn self.run(x)', 'def swap(self):\n    self.run = torch.relu'),
    'rebound name': ('', 'run = cuda_extension.k\nrun = torch.relu', 'return run(x)'),
    'conditional': ('', 'run = torch.relu if torch else cuda_extension.k', 'return run(x)'),
    'or': ('', '', 'return (torch.relu or cuda_extension.k)(x)'),
    'for target': ('for self.run in [torch.relu]:\n    pass\n', '', 'return self.run(x)'),
    'add_module': ("self.run = cuda_extension.k\nself.add_module('run', nn.ReLU())", '', 'return self.run(x)'),
    'register_module': ("self.register_module('forward', nn.ReLU())", '', 'return out'),
    '_modules': ("self._modules['run'] = nn.ReLU()", '', 'return self.run(x)'),
    'setattr': ("setattr(self, 'run', torch.relu)", '', 'return self.run(x)'),
    'object setattr': ("object.__setattr__(self, 'forward', torch.relu)", '', 'return out'),
    'self.forward': ('self.forward = torch.relu', '', 'return out'),
    'class forward': ('', '', 'return out', 'forward = torch.relu'),
    'compiled call': ('self._compiled_call_impl = nn.ReLU()', '', 'return out'),
    'nn.ReLU base': ('', '', 'return super().forward(x)', '', 'nn.ReLU'),
    'nn.ReLU base 2': ('', 'class B(nn.ReLU):\n    pass', 'return super().forward(x)', '', 'B'),
    'super forward': ('', 'class B(nn.Module):\n    pass', 'return super().forward(x)', '', 'B'),
    'unbound forward': ('', '', 'return nn.ReLU.forward(self, x)'),
    'decorator': ('', 'def swap(f):\n    return torch.relu\n\n@swap\ndef g(v):\n    return v\n', 'return g(x)'),
    'class decorator': ('', 'def swap(c):\n    return nn.ReLU\n\n@swap\nclass H:\n    pass\n', 'return H()(x)'),
    'getattr method': ('', '', 'return self.relu(x)', "def __getattr__(self, name):\n    return getattr(torch, 'relu')"),
    'call method': ('', '', 'return out', 'def __call__(self, v):\n    return torch.relu(v)'),
    'class-level dunder': ('', '', 'return out', '__call__ = torch.relu'),
    'metaclass': ('', 'class M(type):\n    pass\n\nclass H(metaclass=M):\n    pass', 'return out'),
    'hook': ('self.register_forward_hook(lambda m, i, o: torch.relu(i[0]))', '', 'return out'),
    'generator at module level': ('', 'B = [torch.zeros(4)]\nG = (torch.relu(b) for b in B)', 'return next(G)'),
    'map at module level': ('', 'B = [torch.zeros(4)]\nG = map(torch.relu, B)', 'return next(G)'),
    'defaultdict': ('', 'import collections, functools\nB = torch.zeros(4)\nD = collections.defaultdict(functools.partial(torch.relu, B))', 'B.copy_(x)\nreturn D[0]'),
    'graph in init': ('self.b = torch.zeros(4)\nself.g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(self.g):\n    self.y = torch.relu(self.b)', '', 'self.b.copy_(x)\nself.g.replay()\nreturn self.y'),
    'helper init': ('', 'class H:\n    def __init__(self, v):\n        self.y = torch.relu(v)\n', 'return H(x).y'),
    'staticmethod torch': ('', '', 'return self.act(x)', 'act = staticmethod(torch.relu)'),
    'property': ('', '', 'return self.act(x)', '@property\ndef act(self):\n    return torch.relu'),
    'unbound self': ('', '', 'return ModelNew.go(torch, x)', 'def softmax(self, v):\n    return v\ndef go(self, v):\n    return self.softmax(v)'),
    'decoy method name': ('', '', 'return x.softmax(-1)', 'def softmax(self, v):\n    return v'),
    'type call': ('', '', 'return type(x).relu(x)'),
    'type 3': ('', "M = type('M', (nn.ReLU,), {})", 'return M()(x)'),
    'patch by alias': ('', 'T = torch\nT.empty_like = torch.relu', 'return torch.empty_like(x)'),
    'patch by container': ('', 'm = [torch][0]\nm.empty_like = torch.relu', 'return torch.empty_like(x)'),
    'patch by if': ('', 'm = torch if nn else nn\nm.empty_like = torch.relu', 'return torch.empty_like(x)'),
    'torch.sys': ('', "torch.sys.modules['cuda_extension'] = torch", 'return cuda_extension.relu(x)'),
    'torch.os': ('', 'os = torch.os', 'return out'),
    'kernel dict store': ("self.k = {'a': cuda_extension.k}\nself.k['a'] = torch.relu", '', "return self.k['a'](x)"),
    'kernel dict alias store': ("self.k = {'a': cuda_extension.k}\nd = self.k\nd['a'] = torch.relu", '', "return self.k['a'](x)"),
    'kernel dict update': ("self.k = {'a': cuda_extension.k}\nself.k.update(a=torch.relu)", '', "return self.k['a'](x)"),
    'kernel list append': ('self.k = []\nself.k.append(torch.relu)', '', 'return self.k[0](x)'),
    'parametrize': ("self.c = nn.Linear(2, 2)\ntorch.nn.utils.parametrize.register_parametrization(self.c, 'weight', nn.ReLU())", '', 'self.c.weight = x\nreturn self.c.weight'),
    'default arg': ('', '', 'def g(v=torch.relu(x)):\n    return v\nreturn g()'),
    'annotation': ('', '', 'class H:\n    y: torch.relu(x) = 1\nreturn out'),
    'class body in forward': ('', '', 'class H:\n    y = torch.relu(x)\nreturn H.y'),
    'jit.fn': ('', 'import triton\n\n@triton.jit\ndef kern(v):\n    return torch.relu(v)\n', 'return kern.fn(x)'),
    'jit torch': ('', 'import triton\n\n@triton.jit\ndef kern(v):\n    return torch.relu(v)\n', 'kern[(1,)](x)\nreturn out'),
    'kernel attr': ('', '', 'return cuda_extension.k.__self__(x)'),
    'triton ops': ('', 'import triton', 'return triton.ops.matmul(x, x)'),
    'grid lambda op': ('', 'import triton\n\n@triton.jit\ndef kern(v):\n    pass\n', "kern[lambda m: (m['v'].relu_(),)](x)\nreturn out"),
    'int of': ('', '', 'a = x.shape\na = x\nreturn a + a'),
    'cycle': ('', '', 'a = b = x\na = b\nb = a\nreturn a + b'),
    'comprehension self': ('', '', 'return [x + x for x in [x]][0]'),
    'swap in loop': ('', '', 'a, b = 1, x\nfor _ in range(2):\n    a, b = b, a\nreturn a * a'),
    'starred': ('', '', 'a, *b = 1, x, x\nreturn b[0] + b[1]'),
    'global': ('', 'Y = 1', 'global Y\nY = x\nreturn Y + Y'),
    'return param': ('', 'def same(v):\n    return v\n', 'y = same(x)\nreturn y + y'),
    'map result': ('', '', 'y = list(map(lambda i: x, range(2)))\nreturn y[0] + y[1]'),
    'dataclass field': ('', 'import dataclasses\n\n@dataclasses.dataclass\nclass H:\n    f: object\n', 'return H(torch.relu).f(x)'),
    'namedtuple': ('', "import collections\nH = collections.namedtuple('H', 'f')", 'return H(torch.relu).f(x)'),
    'vararg': ('', 'def f(*a):\n    return a[0] + a[1]\n', 'return f(x, x)'),
    'kwarg': ('', "def f(**a):\n    return a['p'] + a['p']\n", 'return f(p=x)'),
    'default mutable': ('', 'def f(v, acc=[]):\n    acc.append(v)\n    return acc\n', 'y = f(x)\nreturn y[0] + y[0]'),
    'list index': ('', '', 'idx = [1, 0]\nreturn x[idx]'),
    'matmul plain': ('', '', 'return 1 @ x'),
    'self alias call': ('self.view = nn.ReLU()', '', 'me = [self][0]\nreturn me.view(x)'),
    'ModelNew inner': ('', 'class Inner(nn.Module):\n    def forward(self, v):\n        return torch.relu(v)\n', 'return Inner()(x)'),
    'Module instance call': ('self.inner = nn.Sequential(nn.ReLU())', '', 'return self.inner.forward(x)'),
    'next iter': ('self.inner = nn.Sequential(nn.ReLU())', '', 'return next(iter(self.inner))(x)'),
    'except name': ('', '', 'try:\n    raise ValueError(torch.relu)\nexcept ValueError as e:\n    f = e.args[0]\nreturn f(x)'),
    'with as': ('', '', 'with torch.no_grad() as f:\n    pass\nreturn f(x)'),
    'match': ('', '', 'match [torch.relu]:\n    case [f]:\n        pass\nreturn f(x)'),
    'builtin rebind': ('', 'len = torch.relu', 'return len(x)'),
    'param callable': ('', 'def call(f, v):\n    return f(v)\n', 'return call(torch.relu, x)'),
    'lambda call param': ('', '', 'return (lambda f: f(x))(torch.relu)'),
    'star import': ('', 'from torch import *', 'return relu(x)'),
    'weights in place': ('', '', 'x[0] += 1\nreturn x'),
    'iadd attr': ('self.acc = 0', '', 'self.acc += x\nreturn self.acc'),
    'a mutator under another name': ('self.k = {"a": cuda_extension.k}\nself.put = self.k.update\nself.put(a=torch.relu)', '', 'return self.k["a"](x)'),
    'a mutator under a local name': ('self.k = {"a": cuda_extension.k}\nput = self.k.update\nput(a=torch.relu)', '', 'return self.k["a"](x)'),
    'a builtin that relies on its name': ('', 'K = {"a": cuda_extension.k}\ndef zip(d):\n    d["a"] = torch.relu\nzip(K)', 'return K["a"](x)'),
    'iter calls': ('', '', 'return next(iter(x.relu, None))'),
    'iter calls, unpacked': ('', '', 'return next(iter(*[x.relu, None]))'),
    'iter calls in a map': ('', '', 'return next(list(map(iter, [x.relu], [None]))[0])'),
    'iter of the building': ('', 'B = torch.zeros(8)\nG = iter(B.relu, None)', 'B.copy_(x)\nreturn next(G)'),
    'count adds': ('', 'import itertools', 'return list(itertools.islice(itertools.count(x, x), 2))[1]'),
    'count adds later': ('', 'import itertools\nB = torch.zeros(8)\nG = itertools.count(B, B)', 'B.copy_(x)\nnext(G)\nreturn next(G)'),
    'slice carries': ('', '', 's = slice(x, None)\nreturn s.start + s.start'),
    'an error carries': ('', '', 'e = ValueError(x)\nreturn e.args[0] + e.args[0]'),
    'a key of a ModuleDict named view': ('self.d = nn.ModuleDict({"view": nn.ReLU()})', '', 'return self.d.view(x)'),
    'ModuleDict stored': ('self.d = nn.ModuleDict()\nself.d["view"] = nn.ReLU()', '', 'return self.d.view(x)'),
    'Sequential of an OrderedDict': ('self.d = nn.Sequential(collections.OrderedDict([("view", nn.ReLU())]))', 'import collections', 'return self.d.view(x)'),
    'ParameterDict eps': ('self.d = nn.ParameterDict({"eps": torch.zeros(8)})', '', 'self.d.eps.copy_(x)\nreturn self.d.eps + self.d.eps'),
    'register_buffer eps on a layer': ('self.m = nn.Linear(2, 2)\nself.m.register_buffer("eps", torch.zeros(8))', '', 'self.m.eps.copy_(x)\nreturn self.m.eps + self.m.eps'),
    'register_buffer eps, other name of self': ('self.register_buffer("eps", torch.zeros(8))', '', 'me = [self][0]\nme.eps.copy_(x)\nreturn me.eps + me.eps'),
    'register_buffer under another name': ('r = self.register_buffer\nr("eps", torch.zeros(8))', '', 'me = [self][0]\nme.eps.copy_(x)\nreturn me.eps + me.eps'),
    'register_buffer computed name': ('self.register_buffer("ep" + "s", torch.zeros(8))', '', 'me = [self][0]\nme.eps.copy_(x)\nreturn me.eps + me.eps'),
    'register_parameter computed name': ('self.register_parameter(name="ep" + "s", param=nn.Parameter(torch.zeros(8)))', '', 'me = [self][0]\nme.eps.copy_(x)\nreturn me.eps + me.eps'),
    'tensor as eps': ('self.b = torch.zeros(8)\nself.n = nn.LayerNorm(8, eps=self.b)', '', 'self.b.copy_(x)\nreturn self.n.eps + self.n.eps'),
    'tensor as eps 2': ('self.b = torch.zeros(8)\nself.n = nn.LayerNorm(8, self.b)', '', 'self.b.copy_(x)\nreturn self.n.eps + self.n.eps'),
    'namedtuple field eps': ('', 'import collections\nH = collections.namedtuple("H", "eps")', 'h = H(x)\nreturn h.eps + h.eps'),
    'namedtuple field view': ('', 'import collections\nH = collections.namedtuple("H", ["view"])\nh = H(torch.relu)', 'return h.view(x)'),
    'namedtuple field computed': ('', 'import collections\nH = collections.namedtuple("H", "vi" + "ew")\nh = H(torch.relu)', 'return h.view(x)'),
    'typing.NamedTuple call': ('', 'import typing\nH = typing.NamedTuple("H", [("view", object)])\nh = H(torch.relu)', 'return h.view(x)'),
    'class body calls a method': ('', '', 'class H:\n    def relu(self, v):\n        return v\n    def go(self, v):\n        return self.relu(v)\n    y = go(torch, x)\nreturn H.y'),
    'class body calls a method 2': ('', '', 'class H:\n    def go(self):\n        return self * 2\n    y = go(x)\nreturn H.y'),
    'class body hands a method': ('', '', 'class H:\n    def go(self):\n        return self * 2\n    y = list(map(go, [x]))\nreturn H.y[0]'),
    'forward of an inner class': ('self.i = Inner()', 'class Inner(nn.Module):\n    forward = torch.relu\n', 'return self.i(x)'),
    'forward imported': ('self.i = Inner()', 'class Inner(nn.Module):\n    from torch import relu as forward\n', 'return self.i(x)'),
    'forward a property': ('self.i = Inner()', 'D = {"a": torch.relu}\nclass Inner(nn.Module):\n    @property\n    def forward(self):\n        return D["a"]\n', 'return self.i(x)'),
    'super init': ('', 'class B:\n    def __init__(self, v):\n        self.y = v + v\nclass H(B):\n    def __init__(self, v):\n        super().__init__(v)\n', 'return H(x).y'),
    'getattr a parameter': ('', 'def f(a, b):\n    return a + a\n', 'return (lambda getattr: getattr(x, "relu"))(f)'),
    'staticmethod by import': ('', 'from functools import lru_cache as staticmethod', 'return self.go(x)', '@staticmethod\ndef go(self, v=1):\n    return v + v'),
    'graph capture under another name': ('self.b = torch.zeros(4)\nself.g = torch.cuda.CUDAGraph()\nbegin = self.g.capture_begin\nbegin()\nself.y = torch.relu(self.b)\nself.g.capture_end()', '', 'self.b.copy_(x)\nself.g.replay()\nreturn self.y'),
    'graph capture under an attribute': ('self.b = torch.zeros(4)\nself.g = torch.cuda.CUDAGraph()\nself.begin = self.g.capture_begin\nself.begin()\nself.y = torch.relu(self.b)\nself.g.capture_end()', '', 'self.b.copy_(x)\nself.g.replay()\nreturn self.y'),
    'graph in a container': ('self.b = torch.zeros(4)\nself.g = torch.cuda.CUDAGraph()\nc = [torch.cuda.graph, 1][0]\nwith c(self.g):\n    self.y = torch.relu(self.b)', '', 'self.b.copy_(x)\nself.g.replay()\nreturn self.y'),
    'in is eq and any': ('', '', 'return out if 0.0 in x else x'),
    'setdefault name': ('self.k = {}\nself.k.setdefault("a", torch.relu)', '', 'return self.k["a"](x)'),
    'type of instance': ('self.d = type(nn.Sequential())([("view", nn.ReLU())])', '', 'return self.d.view(x)'),
    'nonlocal': ('', '', 'y = 1\ndef put():\n    nonlocal y\n    y = x\nput()\nreturn y + y'),
    'nonlocal nested': ('', '', 'y = 1\ndef a():\n    def put():\n        nonlocal y\n        y = x\n    put()\na()\nreturn y + y'),
    'apply with work': ('self.apply(self.go)', '', 'return self.go(x)', 'def go(self, m):\n    return torch.relu(m)'),
    'super relu': ('', 'class B(nn.Module):\n    def pick(self, v):\n        return torch.relu(v)\n', 'return super().pick(x)', '', 'B'),
    'super plus': ('', 'class B(nn.Module):\n    def pick(self, v):\n        return v + v\n', 'return super().pick(x)', '', 'B'),
    'except None': ('', 'try:\n    import cuda_extension as c\nexcept ImportError:\n    c = torch', 'return c.relu(x)'),
    'ModuleDict alias': ('self.d = N.ModuleDict({"view": nn.ReLU()})', 'N = nn if torch else torch', 'return self.d.view(x)'),
    'lambda defaults': ('', 'f = lambda v, w=[]: w', 'f(1).append(x)\nreturn f(1)[0] + f(1)[0]'),
    'class attr list': ('', 'class H:\n    parts = []\n', 'H.parts.append(x)\nreturn H().parts[0] + H.parts[0]'),
    'print': ('', '', 'print(x.relu())\nreturn out'),
    'deque': ('', 'import collections', 'd = collections.deque()\ne = d\ne.append(x)\nreturn d[0] + d[0]'),
    'for share': ('', '', 'l = []\nfor a in [l]:\n    for b in [a]:\n        b.append(x)\nreturn l[0] + l[0]'),
    'dict values share': ('', '', 'l = []\nd = {"a": l}\nd.get("a").append(x)\nreturn l[0] + l[0]'),
    'items share': ('', '', 'd = {"a": []}\nfor k, v in d.items():\n    v.append(x)\nreturn d["a"][0] + d["a"][0]'),
    'closure default share': ('', 'def f(a):\n    return lambda: a\n', 'l = []\ng = f(l)\ng().append(x)\nreturn l[0] + l[0]'),
    'instance holds list': ('', 'class H:\n    def __init__(self, l):\n        self.l = l\n', 'l = []\nh = H(l)\nh.l.append(x)\nreturn l[0] + l[0]'),
    'kept instance': ('', 'class H:\n    def __init__(self, l):\n        self.l = l\n    def put(self, v):\n        self.l.append(v)\n', 'l = []\nH(l).put(x)\nreturn l[0] + l[0]'),
    'vararg share': ('', 'def f(*a):\n    for l in a:\n        l.append(a[0])\n', 'l = []\nf(x, l)\nreturn l[0] + l[0]'),
    'vararg share 2': ('', 'def f(v, *a):\n    a[0].append(v)\n', 'l = []\nf(x, l)\nreturn l[0] + l[0]'),
    'kwarg share 2': ('', 'def f(v, **a):\n    a["l"].append(v)\n', 'l = []\nf(x, l=l)\nreturn l[0] + l[0]'),
    'return share': ('', 'def f(l):\n    return l\n', 'l = []\nf(l).append(x)\nreturn l[0] + l[0]'),
    'dataclass share': ('', 'import dataclasses\n@dataclasses.dataclass\nclass H:\n    l: list\n', 'l = []\nh = H(l)\nh.l.append(x)\nreturn l[0] + l[0]'),
    'namedtuple share': ('', 'import collections\nH = collections.namedtuple("H", "l")', 'l = []\nh = H(l)\nh.l.append(x)\nreturn l[0] + l[0]'),
    'nested share': ('', '', 'l = []\nm = [l]\nm[0].append(x)\nreturn l[0] + l[0]'),
    'nested share other way': ('', '', 'm = [[]]\nl = m[0]\nl.append(x)\nreturn m[0][0] + m[0][0]'),
    'nested share third': ('', '', 'l = []\nm = []\nm.append(l)\nl.append(x)\nreturn m[0][0] + m[0][0]'),
    'nested share fourth': ('', '', 'l = []\nm = [l]\nl.append(x)\nreturn m[0][0] + m[0][0]'),
    'nested share fifth': ('', '', 'l = []\nm = []\nm.append(l)\nm[0].append(x)\nreturn l[0] + l[0]'),
    'sub share sixth': ('', '', 'l = []\nm = {}\nm["a"] = l\nm["a"].append(x)\nreturn l[0] + l[0]'),
    'attr share seventh': ('', '', 'l = []\nself.m = {}\nself.m["a"] = l\nself.m["a"].append(x)\nreturn l[0] + l[0]'),
    'class-attr share eighth': ('', 'class H:\n    pass\n', 'l = []\nh = H()\nh.q = l\nh.q.append(x)\nreturn l[0] + l[0]'),
    'setattr via other': ('', 'class H:\n    q = 1\n', 'h = [H()][0]\nh.q = x\nreturn H.q + h.q'),
    'two names of one list': ('', '', 'a = b = []\na.append(x)\nreturn b[0] + b[0]'),
    'two names of one dict of kernels': ('', 'K = L = {"a": cuda_extension.k}\nL["a"] = torch.relu', 'return K["a"](x)'),
    'a walrus names the dict too': ('', 'K = (L := {"a": cuda_extension.k})\nL["a"] = torch.relu', 'return K["a"](x)'),
    'a class body names the dict too': ('', '', 'return self.K["a"](x)', 'K = {"a": cuda_extension.k}\nL = K\nL["a"] = torch.relu'),
    'method of METHODS by other name of self': ('self.reset()', '', 'return [self][0].reset(x)', 'def reset(self, v=None):\n    return None if v is None else torch.relu(v)'),
    'param of method by other name of self': ('', '', 'return [self][0].view(x)', 'def view(self, v):\n    return v + v'),
    'class of METHODS name by other name of self': ('', '', 'return [self][0].view(x).y', 'class view:\n    def __init__(self, v):\n        self.y = torch.relu(v)'),
    'init of class or function': ('', 'class H:\n    def __init__(self, v):\n        self.y = v + v\ndef f(v):\n    return None\n', 'h = (H if x.numel() else f)(x)\nreturn h.y'),
    'init of mapped class': ('', 'class H:\n    def __init__(self, v):\n        self.y = v + v\n', 'return list(map(H, [x]))[0].y'),
    'inherited init': ('', 'class B:\n    def __init__(self, v):\n        self.y = v + v\nclass H(B):\n    pass\n', 'return H(x).y'),
    'dataclass default': ('', 'import dataclasses\n@dataclasses.dataclass\nclass H:\n    y: int = 0\n', 'h = H(x)\nreturn h.y + h.y'),
    'dataclass replace': ('', 'import dataclasses\n@dataclasses.dataclass\nclass H:\n    y: int = 0\n', 'h = dataclasses.replace(H(), y=x)\nreturn h.y + h.y'),
    'NamedTuple default': ('', 'import typing\nclass H(typing.NamedTuple):\n    y: int = 0\n', 'h = H(x)\nreturn h.y + h.y'),
    'dataclass mapped': ('', 'import dataclasses\n@dataclasses.dataclass\nclass H:\n    y: int = 0\n', 'h = list(map(H, [x]))[0]\nreturn h.y + h.y'),
    'dataclass inherited': ('', 'import dataclasses\n@dataclasses.dataclass\nclass H:\n    y: int = 0\n@dataclasses.dataclass\nclass J(H):\n    pass\n', 'h = J(x)\nreturn h.y + h.y'),
    'field factory': ('', 'import dataclasses\nKEEP = []\n@dataclasses.dataclass\nclass H:\n    y: int = dataclasses.field(default_factory=lambda: KEEP[0])\n', 'KEEP.append(x)\nh = H()\nreturn h.y + h.y'),
    'accumulate func keyword': ('', 'import itertools', 'y = list(itertools.accumulate([1, 2], func=lambda a, b: x))[1]\nreturn y + y'),
    'stored by a lambda in reduce': ('', 'import functools', 'parts = []\nfunctools.reduce(lambda acc, v: acc.append(v) or acc, (x,), parts)\nreturn parts[0] + parts[0]'),
    'stored by a lambda in map': ('', '', 'parts = []\nlist(map(lambda l, v: l.append(v), [parts], [x]))\nreturn parts[0] + parts[0]'),
    'sidecar setting': ('', 'import side', 'side.eps.copy_(x)\nreturn side.eps + side.eps', '', 'nn.Module', {'side.py': 'import torch\neps = torch.zeros(8)\n'}),
    'sidecar list': ('', 'import side', 'side.parts.append(x)\nreturn side.total()', '', 'nn.Module', {'side.py': 'parts = []\ndef total():\n    return parts[0] + parts[0]\n'}),
    'sidecar list from': ('', 'from side import parts, total', 'parts.append(x)\nreturn total()', '', 'nn.Module', {'side.py': 'parts = []\ndef total():\n    return parts[0] + parts[0]\n'}),
    'sidecar kernels': ('', 'import side\nside.K["a"] = torch.relu', 'return side.run(x)', '', 'nn.Module', {'side.py': 'import cuda_extension\nK = {"a": cuda_extension.k}\ndef run(v):\n    return K["a"](v)\n'}),
    'sidecar kernels from': ('', 'from side import K, run\nK["a"] = torch.relu', 'return run(x)', '', 'nn.Module', {'side.py': 'import cuda_extension\nK = {"a": cuda_extension.k}\ndef run(v):\n    return K["a"](v)\n'}),
    'sidecar of a sidecar': ('', 'from side.sub import B', 'B.copy_(x)\nreturn B + B', '', 'nn.Module', {'side.py': 'x = 1\n', 'side/__init__.py': 'x = 1\n', 'side/sub.py': 'import torch\nB = torch.zeros(8)\n'}),
    'tuple pair share': ('', '', 'a, b = [[]] * 2\na.append(x)\nreturn b[0] + b[0]'),
    'partial share': ('', 'import functools\ndef f(l, v):\n    l.append(v)\n', 'l = []\ng = functools.partial(f, l)\ng(x)\nreturn l[0] + l[0]'),
    'indexed by a tuple with a list': ('', '', 't = ([1, 0],)\nreturn x[t]'),
    'indexed by a chosen list': ('', '', 't = [1, 0] if x.numel() else 0\nreturn x[t]'),
    'indexed by a list of a list': ('', '', 't = [[1, 0]]\nreturn x[t[0]]'),
    'indexed by a list of a function': ('', 'def f():\n    return [1, 0]\n', 'return x[f()]'),
    'indexed by a list handed in': ('', 'def f(v, i):\n    return v[i]\n', 'return f(x, [1, 0])'),
    'indexed by an element': ('', '', 'for i in [[1, 0]]:\n    y = x[i]\nreturn y'),
    'reduce hands back a tensor': ('', 'import functools', 'keep = []\nfunctools.reduce(lambda a, b: keep.append(a * 2) or x, [1, 2, 3])\nreturn keep[1]'),
    'cached_property by import': ('', 'from functools import lru_cache as cached_property', 'self.go(x)\nreturn self.y', '@cached_property\ndef go(self, v=1):\n    self.y = v + v\n    return cuda_extension.k'),
    'InitVar': ('', 'import dataclasses\n@dataclasses.dataclass\nclass H:\n    v: dataclasses.InitVar[int]\n    def __post_init__(self, v):\n        self.y = v + v\n', 'return H(x).y'),
    'method of the class by a tensor': ('', '', 'return ModelNew.view(x)', 'def view(self):\n    return self * 2'),
    'method of the type by a tensor': ('', '', 'return type(self).view(x)', 'def view(self):\n    return self * 2'),
    'method of the class by torch': ('', 'class H:\n    def softmax(self, v, d):\n        return v\n    def view(self, v):\n        return self.softmax(v, -1)\n', 'return [[H]][0][0].view(torch, x)'),
    'a tuple of ones own': ('', 'import typing\nclass H(typing.NamedTuple):\n    y: object\n    def go(self):\n        return self[0] + self[0]\n', 'return H(x).go()'),
    'astuple': ('', 'import dataclasses\n@dataclasses.dataclass\nclass H:\n    y: int = 0\n', 'h = H(1)\nh.y = x\nt = dataclasses.astuple(h)\nreturn t[0] + t[0]'),
    'late import': ('', 'KEEP = []', 'KEEP.append(x)\nimport side\nreturn side.Y', '', 'nn.Module', {'side.py': 'import torch\nfrom model_new import KEEP\nY = torch.relu(KEEP[0])\n'}),
    'own error carries': ('', 'class E(ValueError):\n    pass\n', 'e = E(x)\nreturn e.args[0] + e.args[0]'),
    'except own error': ('', '', 'try:\n    raise ValueError(x)\nexcept ValueError as e:\n    y = e.args[0]\nreturn y + y'),
    'stop iteration carries': ('', '', 'e = StopIteration(x)\nreturn e.value + e.value'),
    'inner own Module': ('self.m = nn.Module()\nself.m.eps = torch.zeros(8)', '', 'self.m.eps.copy_(x)\nreturn self.m.eps + self.m.eps'),
    'inner Module bias': ('self.m = nn.Linear(2, 2)\nself.m.bias = nn.ReLU()', '', 'return self.m.bias(x)'),
    'layer class attr': ('', 'nn.Linear.eps = 1', 'return out'),
    'Sequential names': ('sd = nn.Module().state_dict()\nsd["view"] = nn.ReLU()\nself.d = nn.Sequential(sd)', '', 'return self.d.view(x)'),
    'setting by a container': ('self.b = torch.zeros(8)\nself.n = [nn.LayerNorm, 1][0](8, eps=self.b)', '', 'self.b.copy_(x)\nreturn self.n.eps + self.n.eps'),
    'setting by star': ('self.b = torch.zeros(8)\na = [8, self.b]\nself.n = nn.LayerNorm(*a)', '', 'self.b.copy_(x)\nreturn self.n.eps + self.n.eps'),
    'bound method of a layer in map': ('self.a = nn.ReLU()', '', 'return list(map(self.a.forward, [x]))[0]'),
    'partial later': ('self.f = functools.partial(torch.relu)', 'import functools', 'return self.f(x)'),
    'class attr function': ('', 'class H:\n    f = torch.relu\n', 'return H.f(x)'),
    'instance attr function': ('', 'class H:\n    f = torch.relu\n', 'return H().f(x)'),
    'own len': ('', '', 'class H:\n    def __len__(self):\n        return torch.relu(x)\nreturn len(H())'),
    'lambda in class body': ('', 'class H:\n    f = lambda self: self + self\n', 'return H.f(x)'),
    'lambda in class body 2': ('', 'class H:\n    f = lambda self, v: v + v\n', 'return H().f(x)'),
    'assigned method': ('', 'def g(v):\n    return v * 2\nclass H:\n    f = g\n', 'return H.f(x)'),
    'assigned method 2': ('', 'def g(s, v=1):\n    return v * 2\nclass H:\n    f = g\n', 'return H().f(x)'),
    'assigned method 3': ('self.go = g', 'def g(s, v=1):\n    return s * v\n', 'return self.go(x)'),
    'assigned staticmethod': ('', 'def g(v, w=1):\n    return v * w\nclass H:\n    f = staticmethod(g)\n', 'return H.f(x)'),
    'assigned classmethod': ('', '', 'return self.go(x)', '@classmethod\ndef go(cls, v):\n    return v + v'),
    'classmethod through class': ('', 'class H:\n    @classmethod\n    def go(cls, v=1):\n        return v + v\n', 'return H.go(x)'),
    'static through instance': ('', 'class H:\n    @staticmethod\n    def go(a, v=1):\n        return a + v\n', 'return H().go(x)'),
    'kw only': ('', 'def f(*, v=1):\n    return v + v\n', 'return f(v=x)'),
    'posonly': ('', 'def f(v, /, w=1):\n    return w + w\n', 'return f(1, x)'),
    'dict star': ('', 'def f(v=1, w=2):\n    return w + w\n', 'return f(**{"w": x})'),
    'inner function given': ('', '', 'def f(v=1):\n    return v + v\ng = f\nreturn g(x)'),
    'returned function': ('', 'def make():\n    def f(v=1):\n        return v + v\n    return f\n', 'return make()(x)'),
    'function in dict': ('', 'def f(v=1):\n    return v + v\nD = {"f": f}\n', 'return D["f"](x)'),
    'function by get': ('', 'def f(v=1):\n    return v + v\nD = {"f": f}\n', 'return D.get("f")(x)'),
    'function by loop': ('', 'def f(v=1):\n    return v + v\n', 'for g in (f,):\n    y = g(x)\nreturn y'),
    'function by with': ('', 'def f(v=1):\n    return v + v\n', 'return [g(x) for g in [f]][0]'),
    'function by attribute in a class': ('', 'def f(s, v=1):\n    return v + v\nclass H:\n    view = f\n', 'return [[H()]][0][0].view(x)'),
    'lambda by attribute in a class': ('', 'class H:\n    view = lambda s, v=1: v + v\n', 'return [[H()]][0][0].view(x)'),
    'overridden apply': ('self.lin = nn.Linear(2, 2)\nself.lin.apply(self._go)', '', 'return self._go(x)', 'def _go(self, m):\n    return torch.relu(m) if not isinstance(m, nn.Module) else None'),
    'train in building': ('self.train()', '', 'self.train(x)\nreturn self.y', 'def train(self, mode=1):\n    self.y = mode + mode\n    return super().train(True)'),
    'function by attribute of another': ('', 'def f(v=1):\n    return v + v\nclass H:\n    pass\nh = H()\nh.view = f\n', 'return [h][0].view(x)'),
    'zip of a tensor': ('', '', 'for a, b in zip((1, 2), (x, x)):\n    y = b + a\nreturn y'),
    'enumerate of a tensor': ('', '', 'return [b + i for i, b in enumerate([x])][0]'),
    'zip keeps a list': ('', '', 'l = []\nfor a, b in zip([l], [x]):\n    a.append(b)\nreturn l[0] + l[0]'),
    'zip unpacked': ('', '', 'for a, b in zip(*[(1, 2), (x, x)]):\n    y = b + a\nreturn y'),
    'isinstance is not what it says': ('', 'import functools', 'def f(a, b):\n    return b(a)\nisinstance = f\nreturn isinstance(x, torch.relu)'),
    'isinstance by a parameter': ('', '', 'return (lambda isinstance: isinstance(x, torch.relu))(map)'),
    'isinstance keeps': ('', '', 'isinstance(x, (f := torch.relu))\nreturn f(x)'),
    'a method that may be a layer': ('self.b = torch.zeros(8)\nif torch.cuda.is_available():\n    self.put = nn.ReLU()\nself.put(self.b)', '', 'self.b.copy_(x)\nreturn self.s + self.s', 'def put(self, v):\n    self.s = v'),
    'a function that may be a layer': ('self.b = torch.zeros(8)\nself.put = g\nif torch.cuda.is_available():\n    self.put = nn.ReLU()\nself.put(self.b)', 'KEEP = []\ndef g(v):\n    KEEP.append(v)\n', 'self.b.copy_(x)\nreturn KEEP[0] + KEEP[0]'),
    'a method of an object of two kinds': ('self.b = torch.zeros(8)\nh = [H(), 1][0]\nh.put(self.b)', 'class H:\n    def put(self, v):\n        H.s = v\n', 'self.b.copy_(x)\nreturn H.s + H.s'),
    'a cached buffer in building': ('self.b = torch.zeros(8)\nself.s = self.same(self.b)', 'def same(v):\n    return v\n', 'self.b.copy_(x)\nreturn self.s + self.s', 'def same(self, v):\n    return same(v)'),
    'a tensor as eps of a transformer': ('self.b = torch.zeros(8)\nself.t = nn.TransformerEncoderLayer(8, 2, layer_norm_eps=self.b)', '', 'self.b.copy_(x)\nreturn self.t.norm1.eps + self.t.norm1.eps'),
    'a tensor as number of layers': ('self.b = torch.ones(1, dtype=torch.int64)\nself.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), num_layers=self.b)', '', 'self.b.copy_(x)\nreturn self.t.num_layers + self.t.num_layers'),
}  # fmt: skip
"""Library work beside a kernel of one's own: lines of __init__, before the class, of forward, methods, base."""

HONEST = {
    'prod': ('', 'import functools, operator', 'n = functools.reduce(operator.mul, x.shape, 1)\ncuda_extension.k(x, out, n)\nreturn out'),
    'lambda prod': ('', 'import functools', 'n = functools.reduce(lambda a, b: a * b, x.shape, 1)\ncuda_extension.k(x, out, n)\nreturn out'),
    'math': ('', 'import math', 'n = math.prod(x.shape[1:]) * math.ceil(x.numel() / 256)\ncuda_extension.k(x, out, n)\nreturn out'),
    'helper method': ('self.block = 256', '', 'cuda_extension.k(x, out, self.blocks(x.numel()))\nreturn out', 'def blocks(self, n):\n    return (n + self.block - 1) // self.block'),
    'helper function': ('', 'def blocks(n, b=256):\n    return (n + b - 1) // b\n', 'cuda_extension.k(x, out, blocks(x.numel()) * 2)\nreturn out'),
    'static': ('', '', 'cuda_extension.k(x, out, self.up(x.shape[0], 4) + 1)\nreturn out', '@staticmethod\ndef up(n, b):\n    return -(-n // b) * b'),
    'alias': ('self.k = cuda_extension.k', '', 'y = torch.empty_like(x)\nk = self.k\nk(x, y, x.numel())\nreturn y'),
    'alias empty': ('', 'empty = torch.empty_like', 'y = empty(x)\ncuda_extension.k(x, y, 1)\nreturn y'),
    'getattr': ('', '', "y = torch.empty(x.shape, dtype=getattr(torch, 'float32'))\ncuda_extension.k(x, y, 1)\nreturn y"),
    'dict': ("self.k = {'a': cuda_extension.k, 'b': cuda_extension.k2}", '', "self.k['a'](x, out, x.numel())\nfor k in self.k.values():\n    k(x, out, 1)\nreturn out"),
    'tuple': ('', 'K = (cuda_extension.k, cuda_extension.k2)', 'K[0](x, out, 1)\nfor k in K:\n    k(x, out, 1)\nreturn out'),
    'cache': ('self.cache = {}', '', 'key = (x.shape, x.dtype)\nif key not in self.cache:\n    self.cache[key] = torch.empty_like(x)\ny = self.cache[key]\ncuda_extension.k(x, y, 1)\nreturn y'),
    'shape compare': ('self.out = None', '', 'if self.out is None or self.out.shape != x.shape or x.dtype != torch.float32:\n    self.out = torch.empty_like(x)\ncuda_extension.k(x, self.out, 1)\nreturn self.out'),
    'eps': ('self.n = nn.LayerNorm(4)', '', 'cuda_extension.k(x, out, 1, self.n.eps * 2)\nreturn out'),
    'init helper': ('self.reset()', '', 'cuda_extension.k(x, out, self.w)\nreturn out', 'def reset(self):\n    self.w = nn.Parameter(torch.randn(4))\n    nn.init.ones_(self.w)'),
    'block class': ('self.b = Block(4)', 'class Block(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n        self.n = n\n        self.lin = nn.Linear(n, n)\n    def forward(self, v):\n        y = torch.empty_like(v)\n        cuda_extension.k(v, self.lin.weight, y, self.n * 2)\n        return y\n', 'return self.b(x)'),
    'streams': ('self.g = None\nself.s = torch.cuda.Stream()\nself.e = torch.cuda.Event()', '', 'self.s.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(self.s):\n    cuda_extension.k(x, out, 1)\nself.e.record(self.s)\ntorch.cuda.current_stream().wait_stream(self.s)\nif self.g is None:\n    self.g = torch.cuda.CUDAGraph()\n    with torch.cuda.graph(self.g):\n        cuda_extension.k(x, out, 1)\nself.g.replay()\nreturn out'),
    'own open': ('', 'def open(v, y):\n    cuda_extension.open(v, y, 1)\n', 'open(x, out)\nreturn out'),
    'own open method': ('', '', 'self.open(x, out)\nreturn out', 'def open(self, v, y):\n    cuda_extension.open(v, y, 1)'),
    'name clash': ('', 'def scale(v, y):\n    cuda_extension.k(v, y, 1)\n', 'n = x.shape[0]\nscale(x, out)\nreturn out', 'def other(self):\n    scale = 1.0 / 3\n    return scale * 2'),
    'raise': ('', '', "if not x.is_contiguous():\n    raise ValueError(f'got {x.stride()}')\nreturn out"),
    'lru': ('', 'import functools\n\n@functools.lru_cache(maxsize=None)\ndef blocks(n):\n    return n // 2 + 1\n', 'cuda_extension.k(x, out, blocks(x.numel()))\nreturn out'),
    'dims': ('', '', 'b, c, *rest = x.shape\nn = 1\nfor r in rest:\n    n *= r\nh, w = (d // 2 for d in x.shape[-2:])\ncuda_extension.k(x, out, b * c * n * h)\nreturn out[:, : c // 2]'),
    'int input': ('', '', 'cuda_extension.k(x, out, int(x.numel()) * max(1, x.dim()))\nreturn out'),
    'next params': ('self.l = nn.Linear(2, 2)', '', 'd = next(self.l.parameters()).device\ny = torch.empty(x.shape, device=d)\ncuda_extension.k(x, y, 1)\nreturn y'),
    'output tuple': ('', "import collections\nOut = collections.namedtuple('Out', 'a b')", 'return Out(out, x)'),
    'outputs list': ('', '', 'outs = []\nfor i in range(3):\n    y = torch.empty_like(x)\n    cuda_extension.k(x, y, i + 1)\n    outs.append(y)\nreturn outs'),
    'size attr': ('self.size = 4', '', 'n = x.size(0) * self.size\ncuda_extension.k(x, out, n)\nreturn out'),
    'device props': ('', '', 'p = torch.cuda.get_device_properties(x.device)\ncuda_extension.k(x, out, p.multi_processor_count * 2)\nreturn out'),
    'numel gen': ('', '', 'n = sum(t.numel() for t in (x, out))\ncuda_extension.k(x, out, n + 1)\nreturn out'),
    'shape names': ('', '', "B, C = x.shape[0], x.shape[1]\nhead = {'a': B}\nn = head['a'] * C\ncuda_extension.k(x, out, n)\nreturn out"),
    'sidecar function': ('', 'from launch import prepare\nimport launch', 'return launch.up(prepare(out))', '', 'nn.Module', {'launch.py': 'def prepare(out):\n    return out.view(-1)\ndef up(v):\n    return v.view(-1)\n'}),
    'sidecar class': ('self.o = Op(4)', 'from launch import Op', 'self.o(x, out)\nreturn out', '', 'nn.Module', {'launch.py': 'import cuda_extension\nfrom torch import nn\nclass Op(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n        self.n = n\n    def forward(self, v, y):\n        cuda_extension.k(v, y, self.n * 2)\n'}),
    'config': ('self.c = Config(block=64)', 'import dataclasses\n@dataclasses.dataclass\nclass Config:\n    block: int = 256\n    warps: int = 4\n', 'cuda_extension.k(x, out, self.c.block * self.c.warps)\nreturn out'),
    'namedtuple numbers': ('', 'from collections import namedtuple\nShape = namedtuple("Shape", ["rows", "cols"])', 's = Shape(x.shape[0], x.shape[1])\ncuda_extension.k(x, out, s.rows * s.cols)\nreturn out'),
    'index loop list': ('', '', 'for i in [0, 1]:\n    cuda_extension.k(x[i], out[i], 1)\nreturn out'),
    'index param': ('', 'def pick(v, i):\n    return v[i]\n', 'return pick(x, 1)'),
    'register': ('self.register_buffer("scale", torch.ones(4))\nself.register_parameter("bias", None)', '', 'cuda_extension.k(x, out, self.scale)\nreturn out'),
    'in': ('self.cache = {}', '', 'if x.shape not in self.cache:\n    self.cache[x.shape] = torch.empty_like(x)\nif x.dtype in (torch.float16, torch.bfloat16):\n    raise ValueError("half")\nreturn out'),
    'init test run': ('self.c = nn.Conv2d(3, 4, 3)\nself.shape = self.c(torch.zeros(1, 3, 8, 8)).shape', '', 'return out'),
    'init layers': ('self.l = nn.Sequential(nn.Linear(2, 2), nn.ReLU())\nself.e = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 1)\nself.m = nn.ModuleList([nn.Linear(n, n) for _ in range(2)] if (n := 4) else [])', '', 'return out'),
    'inherited init': ('self.o = Op(4)', 'class Base(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n        self.n = n * 2\nclass Op(Base):\n    def __init__(self, n):\n        super().__init__(n)\n    def forward(self, v, y):\n        cuda_extension.k(v, y, self.n + 1)\n', 'self.o(x, out)\nreturn out'),
    'enumerate': ('', '', 'for i, s in enumerate(x.shape):\n    cuda_extension.k(x, out, i * s)\nreturn out'),
    'count': ('', 'import itertools', 'c = itertools.count()\ncuda_extension.k(x, out, next(c) + 1)\nreturn out'),
    'get own and dict': ('self.c = {}', '', 'y = self.get(2)\nz = self.c.get(x.shape)\nreturn out', 'def get(self, n):\n    return n * 2'),
    'parameter list': ('self.ps = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(2)])', '', 'for p in self.ps:\n    cuda_extension.k(p, out, 1)\nreturn out'),
    'chained numbers': ('', '', 'a = b = 0\na += 1\nb += 2\ncuda_extension.k(x, out, a * b)\nreturn out'),
    'sidecar package': ('', 'from ops.launch import prepare', 'return prepare(out, 4)', '', 'nn.Module', {'ops/launch.py': 'def prepare(out, n):\n    n = n * 2\n    return out.view(-1)\n', 'ops/__init__.py': ''}),
    'sidecar constant': ('', 'import launch', 'cuda_extension.k(x, out, launch.BLOCK * 2)\nreturn out', '', 'nn.Module', {'launch.py': 'BLOCK = 128\n'}),
    'shape fields': ('', 'from typing import NamedTuple\nclass Shape(NamedTuple):\n    rows: int\n    cols: int = 1\n', 's = Shape(x.shape[0], x.shape[1])\ncuda_extension.k(x, out, s.rows * s.cols)\nreturn out'),
    'super method': ('', 'class B(nn.Module):\n    def blocks(self, n):\n        return n // 2\n', 'cuda_extension.k(x, out, super().blocks(x.numel()) + 1)\nreturn out', 'def blocks(self, n):\n    return super().blocks(n) * 2', 'B'),
    'super train': ('', '', 'return out', 'def train(self, mode=True):\n    super().train(mode)\n    return self'),
    'apply': ('self.lin = nn.Linear(2, 2)\nself.apply(self._init)', '', 'return out', 'def _init(self, m):\n    if isinstance(m, nn.Linear):\n        nn.init.zeros_(m.bias)'),
    'apply static': ('self.lin = nn.Linear(2, 2)\nself.apply(_init)', 'def _init(m):\n    if isinstance(m, nn.Linear):\n        nn.init.xavier_uniform_(m.weight)\n', 'return out'),
    'nonlocal': ('', '', 'n = 0\ndef more():\n    nonlocal n\n    n += 1\n    return n\nmore()\ncuda_extension.k(x, out, n * 2)\nreturn out'),
    'triton maybe': ('', 'try:\n    import triton\n    import triton.language as tl\nexcept ImportError:\n    triton = None\n    tl = None\n', 'return out'),
    'index numbers': ('', '', 'ys = []\nfor i in range(x.shape[0]):\n    ys.append(x[i])\nsizes = list(x.shape)\nj = sizes[0] // 2\nreturn x[j:, 0], x[..., None], x[[1, 2][0]] , x[(0, 1)]'),
    'enumerate beside tensors': ('self.l = nn.ModuleList([nn.Linear(2, 2)])', '', 'for i, m in enumerate(self.l):\n    cuda_extension.k(x[i], m.weight, i + 1)\nfor y, n in zip((x, out), x.shape):\n    cuda_extension.k(y, n * 2)\nreturn out'),
    'layers in a list': ('n = 4\nlayers = []\nfor i in range(3):\n    layers.append(nn.Linear(n, n))\nself.net = nn.Sequential(*layers)', '', 'return out'),
    'buffers by shape': ('self.c = {}', '', 'h = x.shape[0] + 2\ny = self.buffer("y", (h, 4), x)\nreturn out', 'def buffer(self, name, shape, like):\n    key = (name, tuple(shape), like.dtype)\n    buf = self.c.get(key)\n    if buf is None:\n        buf = torch.empty(shape, dtype=like.dtype)\n        self.c[key] = buf\n    return buf'),
    'isinstance in forward': ('self.l = nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])', '', 'for m in self.l:\n    if isinstance(m, (nn.Linear, nn.Conv2d)):\n        cuda_extension.k(x, m.weight, m.in_features * 2)\nreturn out'),
}  # fmt: skip
"""What a candidate may write."""


@pytest.mark.parametrize("way", LIBRARY_WORK)
def test_library_work_is_refused_however_it_is_named_kept_or_handed_on(way):
    for policy in ("own_kernels_only", "libraries_allowed"):
        with pytest.raises(Failed) as caught:
            check_candidate(module(*LIBRARY_WORK[way]), policy=policy)
        assert caught.value.status is Status.REJECTED and "\n" not in caught.value.reason


@pytest.mark.parametrize("way", HONEST)
def test_honest_numbers_helpers_containers_streams_and_names_pass(way):
    for policy in ("own_kernels_only", "libraries_allowed"):
        check_candidate(module(*HONEST[way]), policy=policy)


@pytest.mark.parametrize(
    "after", ["ModelNew = nn.ReLU\n", "ModelNew.forward = torch.relu\n", "for ModelNew in [nn.ReLU]:\n    pass\n", "from torch.nn import ReLU as ModelNew\n", "def ModelNew():\n    return nn.ReLU()\n"],
)  # fmt: skip
def test_the_judged_class_has_one_binding(after):
    with pytest.raises(Failed) as caught:
        check_candidate(module(body="return out", after=after), policy="libraries_allowed")
    assert caught.value.rule == "patch"


TRITON = """import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 1024}, num_warps=4)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, tl.maximum(v, 0.0), mask=offsets < n)


BEFORE
class ModelNew(nn.Module):
    def forward(self, x):
        y, n = torch.empty_like(x), x.numel()
BODY
        return y
"""


def triton(before: str, body: str) -> Candidate:
    text = TRITON.replace("BEFORE", before).replace("BODY", "".join(f"        {line}\n" for line in body.splitlines()))
    return Candidate(format="triton", files={"model_new.py": text})


TRITON_HONEST = {
    'lambda': ('', 'grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)\nrelu_kernel[grid](x, y, n)'),
    'inline': ('', 'relu_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]), 1)](x, y, n)'),
    'def': ('', 'def grid(meta):\n    return (triton.cdiv(n, meta["BLOCK"]),)\nrelu_kernel[grid](x, y, n)'),
    'tuple': ('', 'relu_kernel[(triton.cdiv(n, 1024),)](x, y, n)'),
    'helper': ('def launch(v, out):\n    n = v.numel()\n    BLOCK = triton.next_power_of_2(n)\n    relu_kernel[(triton.cdiv(n, BLOCK),)](v, out, n)\n', 'launch(x, y)'),
    'dict of kernels': ('K = {"relu": relu_kernel}', 'K["relu"][(triton.cdiv(n, 1024),)](x, y, n)'),
    'stride': ('', 'relu_kernel[(x.shape[0] * 2,)](x, y, x.stride(0) * 2)'),
    'props': ('', 'sms = torch.cuda.get_device_properties(x.device).multi_processor_count\nrelu_kernel[(min(sms * 4, triton.cdiv(n, 1024)),)](x, y, n)'),
    'two grids': ('', 'grid = lambda META: (triton.cdiv(x.shape[0], META["BLOCK"]) * triton.cdiv(x.shape[1], META["BLOCK"]), )\nrelu_kernel[grid](x, y, n)'),
}  # fmt: skip
"""Lines before the class, lines of forward."""
TRITON_CHEATS = {
    'grid writes': ('', 'relu_kernel[lambda m: (m["x_ptr"].relu_(), 1)](x, y, n)'),
    'grid walrus': ('', 'relu_kernel[lambda m: ((z := m["x_ptr"] + 1), 1)](x, y, n)'),
    'grid stores': ('', 'keep = []\nrelu_kernel[lambda m: (keep.append(m["x_ptr"] + 1), 1)](x, y, n)'),
    'cdiv': ('', 'relu_kernel[(1,)](x, y, n)\ny = triton.cdiv(x, 2)'),
    'fn': ('', 'relu_kernel[(1,)](x, y, n)\ny = relu_kernel.fn(x)'),
    'fn2': ('', 'relu_kernel[(1,)](x, y, n)\ny = relu_kernel.fn.fn(x)'),
    'no launch': ('', 'relu_kernel(x, y, n)'),
    'language': ('', 'relu_kernel[(1,)](x, y, n)\ny = tl.maximum(x, 0)'),
    'grid twice': ('', "g = lambda m: m['x'] + 1\nrelu_kernel[g](x, y, n)\ny = g({'x': x})"),
    'grid kept': ('', "g = lambda m: m['x'] + 1\nrelu_kernel[g](x, y, n)\nD = {'g': g}\ny = D['g']({'x': x})"),
    'grid from map': ('', "g = lambda m: m['x'] + 1\nrelu_kernel[g](x, y, n)\ny = list(map(g, [{'x': x}]))[0]"),
    'heur': ('', "relu_kernel[(1,)](x, y, n)\ny = [f for f in (lambda a: a['x'] + 1,)][0]({'x': x})"),
}  # fmt: skip
"""The same, with work of torch's in or beside a launch."""


def test_triton_grids_and_launches_pass_and_torch_in_them_does_not():
    for lines in TRITON_HONEST.values():
        check_candidate(triton(*lines), policy="own_kernels_only", backend="cuda")
    for lines in TRITON_CHEATS.values():
        with pytest.raises(Failed) as caught:
            check_candidate(triton(*lines), policy="libraries_allowed", backend="cuda")
        assert caught.value.rule == "torch_op"


def test_kernels_of_cupy_may_be_kept_in_a_dictionary_made_late_or_by_a_cached_function():
    kernel = "cupy.RawKernel('extern \"C\" __global__ void k(const float* x, float* o) {}', 'k')"
    call = "KERNEL((1,), (256,), (x.data_ptr(), out.data_ptr(), cupy.int64(x.numel())))"
    ways = {
        f"KERNELS = {{'a': {kernel}}}": "KERNELS['a']",
        f"KERNELS = ({kernel}, {kernel})": "KERNELS[0]",
        f"def make(n):\n    return {kernel}\n": "make(4)",
        f"import functools\n\n\n@functools.lru_cache\ndef make(n):\n    return {kernel}\n": "make(4)",
    }
    for before, name in ways.items():
        text = CUPY.replace("\n\nclass", f"\n{before}\n\nclass").replace(call, name + call.removeprefix("KERNEL"))
        check_candidate(Candidate(format="cupy", files={"model_new.py": text}), policy="own_kernels_only", backend="cuda")
        for bad in (f"{name.partition('[')[0].partition('(')[0]} = torch.relu\n",):
            with pytest.raises(Failed):
                check_candidate(Candidate(format="cupy", files={"model_new.py": text + bad}), policy="own_kernels_only", backend="cuda")


def test_what_a_module_of_torch_keeps_for_itself_is_known():
    import torch

    from sandbox.allowed import PRIVATE

    assert {n for n in dir(torch.nn.Module()) if n.startswith("_") and not n.startswith("__")} <= PRIVATE


def compiled(tmp_path, source: str) -> bytes:
    """A library of one source, built with the judge's flags."""
    (tmp_path / "kernel.cpp").write_text(source)
    library = tmp_path / "library.so"
    subprocess.run(["g++", *build.FLAGS, "-o", library, tmp_path / "kernel.cpp", *build.LIBRARIES], check=True)
    return library.read_bytes()


IMPORTS = {
    "a pasted name": ('extern "C" void* dlopen(const char*, int);\n#define JOIN(a, b) a##b\n', 'JOIN(dl, open)("libtorch_cpu.so", 1);', "loader"),
    "a name of the assembler": ('extern "C" void* find(void*, const char*) __asm__("dlsym");\n', 'find(nullptr, "cblas_sgemm");', "loader"),
    "a line that goes on": ('extern "C" int fo\\\nrk();\n', "fo\\\nrk();", "process"),
    "BLAS by pasting": ('#define JOIN(a, b) a##b\nextern "C" void JOIN(cbl, as_sscal)(int, float, float*, int);\n', "JOIN(cbl, as_sscal)(1, 2, out, 1);", "library_call"),
    "an operator of torch": ("namespace a##t { struct Tensor; Tensor& relu_(Tensor&); }\n".replace("##", ""), "at::relu_(*(at::Tensor*)out);", "library_call"),
    "a function of one's own that is not compiled": ("#if 0\nstatic int open(const char* a, int b) { return 0; }\n#endif\n#include <fcntl.h>\n", 'open("/etc/passwd", 0);', "files"),
    "a stream of files": ("#include <fstream>\n", 'std::ifstream f("/etc/passwd"); f.get();', "files"),
    "an address": ('extern "C" int system(const char*);\nint (*keep)(const char*) = system;\n', "keep(0);", "process"),
}  # fmt: skip


@pytest.mark.parametrize("way", IMPORTS)
def test_what_macros_hide_from_a_scan_the_symbols_of_the_library_tell(way, tmp_path):
    before, line, rule = IMPORTS[way]
    library = compiled(tmp_path, before + 'extern "C" void k(const float* x, float* out, long long n) { ' + line + " out[0] = x[0]; }")
    with pytest.raises(Failed) as caught:
        build.check_imports(library)
    assert (caught.value.status, caught.value.rule) == (Status.REJECTED, rule)


def test_libraries_of_honest_kernels_want_nothing_that_is_refused(tmp_path):
    source = """
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>
extern "C" void k(const float* x, float* out, long long n) {
    std::vector<float> t(x, x + n);
    std::sort(t.begin(), t.end());
    std::thread other([&] { for (long long i = 0; i < n; i++) t[i] = std::tanh(t[i]); });
    other.join();
#pragma omp parallel for
    for (long long i = 0; i < n; i++) out[i] = expf(t[i]);
    if (n < 0) { printf("%lld", n); throw 1; }
    memcpy(out, t.data(), 4 * n);
}
"""
    library = compiled(tmp_path, source)
    assert "memcpy" in build.undefined_symbols(library) and build.check_imports(library) is library


def test_what_is_no_library_is_a_compile_error():
    for data in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 58, b"#!/bin/sh\n"):
        with pytest.raises(Failed) as caught:
            build.check_imports(data)
        assert caught.value.status is Status.COMPILE_ERROR


def test_a_static_function_may_have_a_name_of_the_systems_where_symbols_are_read():
    source = "static void open(const float* x, float* y) { y[0] = x[0]; }\n" + KERNEL.replace("{}", "{ open(x, out); }")
    check_candidate(candidate(GOOD, source), policy="libraries_allowed")
    refused = {
        "fork": source.replace("open", "fork").replace("static", ""),
        "raise": source.replace("open", "raise"),
    }
    for text, backend in ((source, "cuda"), (refused["fork"], "cpp"), (refused["raise"], "cpp")):
        with pytest.raises(Failed):
            check_candidate(candidate(GOOD, text), policy="libraries_allowed", backend=backend)


@pytest.mark.parametrize("name", ["kernels/code.json", "kernels/code.py", "kernels/code.txt"])
def test_all_that_a_kernel_can_include_is_read(name):
    whole = candidate(GOOD)
    with pytest.raises(Failed) as caught:
        check_candidate(Candidate(format=whole.format, files=whole.files | {name: "#define FIND dlopen\n"}), policy="libraries_allowed")
    assert caught.value.rule == "loader"
