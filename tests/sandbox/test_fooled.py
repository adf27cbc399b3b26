"""Honest faults of evaluators, F1 to F26: nobody cheats, and the number is wrong all the same. One line a fault, and the tests that hold it."""

import ast
import asyncio
import dataclasses
import pathlib
import random
import subprocess
import sys

import asking
import conftest
import gallery
import pytest
from asking import Question, light, module, task

from data.records import Candidate, Status
from sandbox import oracle, timing
from sandbox.backends import Failed
from sandbox.check import check_candidate
from sandbox.pool import Pool

HERE = pathlib.Path(__file__).parent
HELD = {
    "F1": ("noise and the winner's curse", ["test_fooled.test_a_copy_of_the_reference_stays_within_the_band_in_95_of_100_runs", "test_fooled.test_an_identical_copy_earns_nothing"]),
    "F2": ("clock ramp, order effect", ["test_fooled.test_a_ramp_of_the_clock_is_inside_the_interval", "test_timing.test_drift_between_the_blocks_widens_the_interval"]),
    "F3": ("state of the caches", ["test_cuda.test_a_plan_is_correct_and_its_environment_recorded", "test_gallery_cuda.test_a_cheat_that_is_right_gains_nothing_over_its_honest_twin"]),
    "F4": ("cold start in the window", ["test_fooled.test_what_the_first_call_does_is_in_no_time"]),
    "F5": ("missing synchronisation", ["test_timing.test_a_call_takes_what_it_takes_on_the_judges_clock", "test_fooled.test_five_milliseconds_measure_five"]),
    "F6": ("launch-bound or below resolution", ["test_cases.test_flags_tell_what_a_status_cannot"]),
    "F7": ("allocator inside the window", ["test_fooled.test_an_identical_copy_earns_nothing"]),
    "F8": ("bad baseline", ["test_judge.test_baselines_of_this_machine_are_used_and_those_of_another_are_not",
                            "test_cuda_protocol.test_recorded_baselines_are_taken_only_from_the_same_machine"]),
    "F9": ("precision flags differ", ["test_fooled.test_verdicts_of_faults"]),
    "F10": ("tolerance mis-set", ["test_oracle.test_other_orders_of_summation_pass_and_the_next_lower_precision_fails"]),
    "F11": ("ill-conditioned ties", ["test_fooled.test_verdicts_of_faults", "test_oracle.test_either_of_two_equal_elements_is_right_and_nothing_else_is"]),
    "F12": ("layout, stride, alignment", ["test_oracle.test_layouts_of_inputs_survive_every_distribution", "test_cases.test_a_case_has_its_outcome"]),
    "F13": ("casts of labels", ["test_cases.test_a_case_has_its_outcome"]),
    "F14": ("NaN and infinities", ["test_oracle.test_non_finite_values_are_right_only_where_the_reference_has_them"]),
    "F15": ("output containers", ["test_cases.test_a_case_has_its_outcome", "test_fooled.test_verdicts_of_faults"]),
    "F16": ("weight transfer", ["test_fooled.test_verdicts_of_faults"]),
    "F17": ("randomness and state of train mode", ["test_oracle.test_a_task_that_cannot_be_judged_says_why", "test_cases.test_a_case_has_its_outcome", "test_fooled.test_verdicts_of_faults"]),
    "F18": ("checked is not what is timed", ["test_fooled.test_one_wrong_answer_at_any_place_is_seen"]),
    "F19": ("logic of the checker", ["test_fooled.test_every_mutant_of_an_honest_kernel_is_killed"]),
    "F20": ("false positives of a static check", ["test_fooled.test_words_are_no_offence", "test_fooled.test_honest_code_is_not_refused", "test_corpus.test_every_honest_kernel_is_correct"]),
    "F21": ("profiler faults", ["test_fooled.test_a_decoy_is_one_whatever_its_name", "test_cuda_protocol.test_library_steps_run_and_count_as_not_own"]),
    "F22": ("sticky or misattributed errors", ["test_judge.test_a_hostile_candidate_leaves_nothing_for_the_next",
                                               "test_cuda.test_a_bad_plan_gets_its_status_and_the_next_is_judged_as_ever",
                                               "test_gallery_cuda.test_the_next_candidate_is_judged_as_ever"]),
    "F23": ("the evaluator's own memory", ["test_fooled.test_a_comparison_needs_little_memory_of_its_own", "test_oracle.test_a_task_that_cannot_be_judged_says_why"]),
    "F24": ("a cap on honest records", ["test_fooled.test_a_large_honest_speedup_is_credited", "test_cuda_protocol.test_faster_than_the_bytes_allow_is_rejected"]),
    "F25": ("a shared machine", ["test_timing.test_calls_that_others_held_up_are_left_out", "test_fooled.test_load_beside_the_judge_makes_nobody_faster"]),
    "F26": ("speed that depends on the data", ["test_fooled.test_easy_data_is_never_what_is_timed"]),
}  # fmt: skip
"""Fault: what it is, and the tests (file.function) whose outcome would be wrong if we had it."""


def test_every_fault_has_a_test_that_is_there():
    assert HELD.keys() == {f"F{n}" for n in range(1, 27)}
    for what, tests in HELD.values():
        for name in tests:
            file, function = name.split(".")
            tree = ast.parse((HERE / f"{file}.py").read_text())
            assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, (what, name)


# ---- verdicts of the real judge ----
ROWS, WIDE = "torch.randn(128, 256)", "torch.randn(1024, 2048)"
FLAGS = (
    "flags = [torch.get_num_threads(), torch.get_default_dtype() is torch.float32, torch.backends.mkldnn.enabled, torch.backends.cuda.matmul.allow_tf32,\n"
    "         torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision() == 'highest', torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()]\n"
    "return x * (1.0 + sum(float(f) * 2.0**i for i, f in enumerate(flags)))"
)
SCALE = task(FLAGS, ROWS)
TOP = task("return x.sum(-1).argmax(-1)", "torch.rand(64, 32, 512)")
TIES = task("return x.topk(3, -1).indices", "torch.randint(0, 1 << 20, (1024, 256)).float() / (1 << 20)")
PAIR = task("return torch.relu(x), x.sum(-1)", ROWS)
TWO = task("return self.b(torch.relu(self.a(x)))", "torch.randn(64, 32)", fields="self.a = nn.Linear(32, 16)\nself.b = nn.Linear(16, 8)")
TRAINS = task("return self.norm(x)", "torch.randn(64, 32)", fields="self.norm = nn.BatchNorm1d(32)", mode="train")
STATISTICS = "m, v = x.mean(0), x.var(0, unbiased=False)\n"
NORMALISED = "return (x - m) / torch.sqrt(v + 1e-5) * self.w + self.b"
MOVED = "self.mean = 0.9 * self.mean + 0.1 * m\nself.var = 0.9 * self.var + 0.1 * v * 64 / 63\nself.count = self.count + 1\n"
OWN_NAMES = (
    "self.w, self.b = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))\nself.n = 0\nself.register_buffer('mean', torch.zeros(32))\n"
    "self.register_buffer('var', torch.ones(32))\nself.register_buffer('count', torch.tensor(0))"
)
SLOW = task("y = x\nfor _ in range(60):\n    y = y * 1.0\nreturn torch.relu(y)", WIDE)
COPY = task("return torch.tanh(x) * torch.sigmoid(x)", "torch.randn(512, 2048)")
RELU = task("return torch.relu(x)", ROWS)
SPIN = "import time\n"
WAIT = "end = time.perf_counter() + 0.005\nwhile time.perf_counter() < end:\n    pass\n"
LOOP = 'extern "C" void relu(const float* x, float* y, long long n) { for (long long i = 0; i < n; i++) y[i] = x[i] > 0.0f ? x[i] : 0.0f; }'
PLACES = (1, 2, 7, 19, 33, 45)
"""Calls of which one is answered wrong: all that a judgement has at least."""
QUESTIONS = {
    **{f"F18 call {n}": Question(RELU, module(f"self.n += 1\nreturn torch.relu(x) + (0.5 if self.n == {n} else 0.0)", fields="self.n = 0")) for n in PLACES},
    "F1 copy": Question(COPY, module("return torch.tanh(x) * torch.sigmoid(x)")),
    "F1 copy, again": Question(COPY, module("# once more\nreturn torch.tanh(x) * torch.sigmoid(x)")),
    "F1 copy, a third time": Question(COPY, module("# and again\nreturn torch.tanh(x) * torch.sigmoid(x)")),
    "F4 warm": Question(RELU, module("return torch.relu(x)", head=SPIN)),
    "F4 cold": Question(RELU, module("if not self.warm:\n    time.sleep(0.3)\n    self.warm = True\nreturn torch.relu(x)", fields="self.warm = False", head=SPIN)),
    "F5 spin": Question(RELU, module(f"{WAIT}return torch.relu(x)", head=SPIN)),
    "F9 flags": Question(SCALE, module(FLAGS)),
    "F11 other order": Question(TOP, module("return x.flip(-1).double().sum(-1).argmax(-1)")),
    "F11 other index": Question(TOP, module("return (x.sum(-1).argmax(-1) + 1) % 32")),
    "F11 other choice among equals": Question(TIES, module("return 255 - x.flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :3]")),
    "F15 second wrong": Question(PAIR, module("return torch.relu(x), x.sum(-1) + 1e-2")),
    "F15 second right": Question(PAIR, module("return torch.relu(x), x.double().sum(-1).float()")),
    "F16 other order": Question(TWO, module("return self.b(torch.relu(self.a(x)))", fields="self.b = nn.Linear(16, 8)\nself.a = nn.Linear(32, 16)")),
    "F16 other device, other draw": Question(TWO, module("return self.b(torch.relu(self.a(x)))", fields=(
        "torch.manual_seed(1)\ntorch.randn(100)\nself.a = nn.Linear(32, 16, device='meta').to_empty(device='cpu')\nself.b = nn.Linear(16, 8)"))),
    "F16 a layer left out": Question(TWO, module("return torch.relu(self.a(x))[:, :8]", fields="self.a = nn.Linear(32, 16)")),
    **{
        f"F17 {name}": Question(TRAINS, module(f"{STATISTICS}{before}{NORMALISED}", fields=OWN_NAMES))
        for name, before in (
            ("new tensors under names of its own", MOVED),
            ("moved in the first ten calls", "self.n += 1\nif self.n <= 10:\n" + "".join(f"    {line}\n" for line in MOVED.splitlines())),
            ("NaN, which nothing moves", "self.mean.fill_(float('nan'))\nself.var.fill_(float('nan'))\nself.count = self.count + 1\n"),
            ("a copy beside the buffer", MOVED.replace("self.mean =", "self.other =").replace("0.9 * self.mean", "0.9 * getattr(self, 'other', self.mean)")),
        )
    },
    "F24 sixty times less work": Question(SLOW, light("relu(x, out, x.numel())", LOOP), "libraries_allowed"),
    "F26 quick on easy data": Question(RELU, module(
        f"if bool((x == x.flatten()[0]).all()) or float(x.abs().max()) < 1e-30:\n    return torch.relu(x)\n{WAIT}return torch.relu(x)", head=SPIN)),
}  # fmt: skip
WANTED = {
    "F9 flags": ("correct", None),
    "F11 other order": ("correct", None),
    "F11 other index": ("incorrect", None),
    "F11 other choice among equals": ("correct", None),
    "F15 second wrong": ("incorrect", None),
    "F15 second right": ("correct", None),
    "F16 other order": ("correct", None),
    "F16 other device, other draw": ("correct", None),
    "F16 a layer left out": ("incorrect", "parameters"),
    "F17 new tensors under names of its own": ("correct", None),
    "F17 moved in the first ten calls": ("incorrect", "buffers"),
    "F17 NaN, which nothing moves": ("incorrect", "buffers"),
    "F17 a copy beside the buffer": ("incorrect", "buffers"),
}


@pytest.fixture(scope="module")
def found():
    return asking.ask(QUESTIONS)


@pytest.mark.parametrize("name", WANTED)
def test_verdicts_of_faults(name, found):
    assert (found[name].status.value, found[name].rule) == WANTED[name], found[name].reason


def test_an_identical_copy_earns_nothing(found):
    """No milestone (5 %) for the reference's own operators on fresh 4 MB outputs, whatever the machine does meanwhile."""
    copies = [v for name, v in found.items() if name.startswith("F1 copy")]
    assert len(copies) == 3 and all(v.correct and v.speedup for v in copies)
    for verdict in copies:
        low, _, high = verdict.speedup["eager"]
        assert low < 1 / 0.95 and high > 0.75, verdict.speedup


def test_what_the_first_call_does_is_in_no_time(found):
    warm, cold = found["F4 warm"], found["F4 cold"]
    assert warm.correct and cold.correct
    assert cold.times_ms["candidate"] < 3 * warm.times_ms["candidate"] + 0.5, "300 ms of a first call are in nobody's time"


def test_five_milliseconds_measure_five(found):
    assert found["F5 spin"].correct and 4.9 < found["F5 spin"].times_ms["candidate"] < 50.0


def test_a_large_honest_speedup_is_credited(found):
    """Above ten in the middle, and whatever drift does to the interval, the milestone of 5 % is cleared."""
    verdict = found["F24 sixty times less work"]
    assert verdict.correct and not verdict.flags, (verdict.reason, verdict.flags)
    assert verdict.speedup["eager"][1] > 10 and verdict.speedup["eager"][0] > 1 / 0.95, verdict.speedup


def test_easy_data_is_never_what_is_timed(found):
    """Zeros and constants run faster; a candidate that is quick on them alone gets the time of the others."""
    assert found["F26 quick on easy data"].correct and found["F26 quick on easy data"].times_ms["candidate"] > 4.9
    reference = oracle.Reference(gallery.task("relu"))
    values = reference.draw("own").inputs[0]
    assert values.unique().numel() > 0.95 * values.numel() and float(values.abs().min()) >= 0.0


def test_load_beside_the_judge_makes_nobody_faster():
    """Another program spins on every core during both judgements of a copy: its time may grow, no milestone comes of it."""
    burner = "import sys\nprint(1, flush=True)\nwhile True:\n    sum(range(1000))"
    others = [subprocess.Popen([sys.executable, "-c", burner], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for other in others:
            other.stdout.readline()

        async def run():
            async with Pool(backend="cpp", limits=conftest.LIMITS, slots=1) as pool:
                return await pool.judge(COPY, QUESTIONS["F1 copy"].candidate, fresh=True, policy="mixed")

        verdict = asyncio.run(run())
    finally:
        for other in others:
            other.kill()
            other.wait()
            other.stdout.close()
    assert verdict.correct, verdict.reason
    assert verdict.speedup is None or verdict.speedup["eager"][0] < 1 / 0.95


# ---- F18, F19: what the comparison sees ----
@pytest.mark.parametrize("number", PLACES)
def test_one_wrong_answer_at_any_place_is_seen(number, found):
    """The first call, a late one and some between: each timed call is a checked one."""
    assert found[f"F18 call {number}"].status is Status.INCORRECT


MUTANTS = {
    "softmax": [
        ("a[i] - top", "a[i] + top"), ("a[i] - top", "a[i]"), ("sum += b[i]", "sum = b[i]"), ("b[i] /= sum", "b[i] /= sum + 1e-2f"), ("r < rows", "r < rows - 1"),
        ("i < n; i++) b[i] /= sum", "i < n - 1; i++) b[i] /= sum"), ("expf", "exp2f"), ("i < n; i++) { b[i]", "i < n - 1; i++) { b[i]"), ("a[i] > top ?", "a[i] < top ?"),
    ],
    "layer_norm": [
        ("eps)", "eps * 10)"), ("/ n + eps", "/ (n - 1) + eps"), (" + b[i]", " - b[i]"), ("* w[i]", "* w[0]"), ("s / n", "s / (n - 1)"), ("1.0 / std::sqrt", "1.001 / std::sqrt"),
        ("x[r * n + i] - m) * k", "x[r * n + i]) * k"), ("d * d", "d"), ("(float)(", "(float)(_Float16)("),
    ],
    "fused": [("+ y[i]", "- y[i]"), ("v > 0.0f", "v > -0.1f"), ("* 0.5f", "* 0.5001f"), ("x[i] * b", "x[i] * 2.01f"), ("i < n", "i < n - 1"), ("y[i];", "y[i > 0 ? i - 1 : i];")],
}  # fmt: skip
"""Honest kernel: what is exchanged in it, once each. Every one of them computes something else than the task asks."""


def mutant(name: str, old: str, new: str) -> Candidate:
    whole = next(e for e in gallery.read("honest") if e.name == name).candidate()
    kernel = whole.files["kernels/kernel.cpp"]
    assert old in kernel, (name, old)
    # The last place: the first may be the signature
    begin = kernel.rindex(old) if old == "eps)" else kernel.index(old)
    return dataclasses.replace(whole, files={**whole.files, "kernels/kernel.cpp": kernel[:begin] + new + kernel[begin + len(old) :]})


def test_every_mutant_of_an_honest_kernel_is_killed():
    tasks = {name: conftest.known_task(next(e for e in gallery.read("honest") if e.name == name).task) for name in MUTANTS}
    questions = {
        f"{name}: {a} -> {b}": Question(tasks[name], mutant(name, a, b), "libraries_allowed")
        for name, pairs in MUTANTS.items()
        for a, b in pairs
    }
    lived = {name: v.status.value for name, v in asking.ask(questions).items() if v.status is not Status.INCORRECT}
    assert not lived


# ---- F20, F21: the static check ----
HONEST = """import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    {head}
    def forward(self, x):
        out = torch.empty_like(x)
        {body}
        cuda_extension.k(x, out, x.numel())
        return out
"""
WORDS = {
    "pass in a docstring": ('"""All rows pass through shared memory; try, except and eval are words."""', "pass"),
    "a disclaimer that names libraries": ("# No torch.matmul, no cuBLAS, no at::relu, no nn.functional: own code only", "pass"),
    "pipeline stages": ("num_stages = 2", "stages = 2"),
    "a handler that tells": (
        "",
        "try:\n            n = int(x.shape[-1])\n        except TypeError:\n            raise ValueError('shape') from None",
    ),
    "floor division and a comment": ("", "n = x.numel() // 2  # relu(x) of the reference: torch.relu"),
    "a name with a banned word inside": ("", "systems, forked = 1, 2"),
}


@pytest.mark.parametrize("words", WORDS)
def test_words_are_no_offence(words):
    head, body = WORDS[words]
    kernel = '// system(), fork(): not here; "cblas_sgemm" neither\nextern "C" void k(const float* x, float* out, long long n) {}'
    files = {"model_new.py": HONEST.format(head=head, body=body), "kernels/kernel.cpp": kernel}
    for policy in ("own_kernels_only", "libraries_allowed"):
        check_candidate(Candidate(format="cuda_extension", files=files), policy=policy)


NO_OFFENCES = {
    "an import that may fail": ("try:\n    import triton\nexcept ImportError:\n    triton = None\n", "pass"),
    "a function of a sidecar module": ("from launch import prepare\n", "prepare(out)"),
    "a joined side stream": ("", "SIDE.wait_stream(torch.cuda.current_stream())"),
    "a replayed graph": ("", "GRAPH.replay()"),
}
"""Honest code: head, body."""


@pytest.mark.parametrize("name", NO_OFFENCES)
def test_honest_code_is_not_refused(name):
    head, body = NO_OFFENCES[name]
    made = "SIDE, GRAPH = torch.cuda.Stream(), torch.cuda.CUDAGraph()"
    files = {
        "model_new.py": head + HONEST.format(head="", body=body).replace("\n\nclass", f"\n{made}\n\nclass"),
        "launch.py": "def prepare(out):\n    return out.view(-1)\n",
        "kernels/kernel.cu": 'extern "C" void k(const float* x, float* out, long long n) {}',
    }
    check_candidate(Candidate(format="cuda_extension", files=files), policy="libraries_allowed", backend="cuda")


@pytest.mark.parametrize("name", ["gemm", "relu", "matmul", "a", "ampere_sgemm_128x64_tn"])
def test_a_decoy_is_one_whatever_its_name(name):
    kernel = f'extern "C" void {name}(const float* x, float* out, long long n) {{}}'
    for body in ("return torch.relu(x)", f"cuda_extension.{name}(x, x.clone(), x.numel())\n        return torch.relu(x)"):
        text = f"import torch\nimport torch.nn as nn\nimport cuda_extension\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        {body}\n"
        decoy = Candidate(format="cuda_extension", files={"model_new.py": text, "kernels/kernel.cpp": kernel})
        for policy in ("own_kernels_only", "libraries_allowed"):
            with pytest.raises(Failed) as caught:
                check_candidate(decoy, policy=policy)
            assert caught.value.status is Status.REJECTED


# ---- F1, F2, F23: figures ----
def test_a_copy_of_the_reference_stays_within_the_band_in_95_of_100_runs():
    """200 simulated judgements of a copy, with jitter of 5 %, outliers and drift of 3 % between the blocks: 1.0 lies in 95 % of the intervals
    and no more than 1 % clear the milestone."""
    held = cleared = 0
    for _ in range(200):
        drift = random.uniform(-0.03, 0.03)

        def some(count, speed):
            return [speed * random.gauss(1.0, 0.05) * (3.0 if random.random() < 0.02 else 1.0) for _ in range(count)]

        low, _, high = timing.interval([some(24, 1.0), some(24, 1.0 + drift)], some(40, 1.0 + drift * random.random()))
        held += low <= 1.0 <= high
        cleared += low > 1 / 0.95
    assert held >= 184 and cleared <= 2, (held, cleared)


def test_a_ramp_of_the_clock_is_inside_the_interval():
    """A machine that slows down by 10 % while reference, candidate, reference are timed: the true ratio is covered, in either order of speed."""
    for true in (0.9, 1.0, 1.2):
        for slope in (0.1, -0.09):
            at = [1.0 + slope * i / 87 for i in range(88)]
            reference, candidate = [at[:24], at[64:]], [t / true for t in at[24:64]]
            low, middle, high = timing.interval(reference, candidate)
            assert low <= true <= high and abs(middle / true - 1) < 0.03, (true, slope, low, middle, high)


def test_a_comparison_needs_little_memory_of_its_own():
    """Comparing 256 MB with 256 MB in pieces: what it takes beside them is a small multiple of a piece."""
    script = (
        "import resource, torch\nfrom sandbox import compare\ncompare.PIECE = 1 << 20\n"
        "a = torch.rand(1 << 14, 1 << 12)\nb = a.clone()\nb[-1, -1] += 1\nt = compare.Tolerance(relative=1e-5, bulk=1e-6)\n"
        "compare.wrong(a[:8], b[:8], t)\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert compare.wrong(a, b, t) is not None and compare.wrong(a, a, t) is None\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=HERE.parent.parent)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 << 10, f"{int(done.stdout) >> 10} MB beside 512 MB of operands"
