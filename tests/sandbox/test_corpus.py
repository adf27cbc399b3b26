"""The honest corpus: kernels in tests/sandbox/corpus that must be judged `correct`.

First line of each (of model_new.py, or of kernels.cu in a plan): # corpus: task=NAME family=NAME format=NAME backend=cpp|cuda techniques=a,b
"""

import asyncio
import dataclasses
import pathlib
import subprocess

import pytest

from sandbox import check, plan
from sandbox.cuda import slots
from sandbox.cuda_build import nvcc
from sandbox.judge import Limits, candidate_from_path, task_from_path
from sandbox.pool import Pool

HERE = pathlib.Path(__file__).parent / "corpus"
LIMITS = Limits(call_s=2.0, build_s=120.0, total_s=60.0, memory_bytes=6 << 30, calls=24, compile_s=0.0)
CUDA_LIMITS = Limits(call_s=5.0, build_s=200.0, compile_s=0.0, total_s=300.0, memory_bytes=16 << 30)
REFUSED: dict[str, str] = {
    "cpp_bound_mish": 'rejected/library_call: a full binding needs torch/types.h, and build.py takes only extern "C" functions',
}
"""Honest kernels that the judge still refuses, with the reason."""


@dataclasses.dataclass
class Entry:
    name: str
    path: pathlib.Path
    task: str
    family: str
    format: str
    backend: str
    techniques: tuple[str, ...]


def read() -> list[Entry]:
    """Every kernel of the corpus. Raises KeyError where a field of the first line is missing."""
    found = []
    for path in sorted((HERE / "kernels").iterdir()):
        main = path
        if path.is_dir():
            main = next((f for f in (path / "model_new.py", path / "kernels.cu") if f.exists()), path)
        if main.suffix not in (".py", ".cu"):
            continue
        words = main.read_text().partition("\n")[0].lstrip("#/ ").removeprefix("corpus: ").split()
        o = dict(w.split("=", 1) for w in words)
        found.append(Entry(path.stem, path, o["task"], o["family"], o["format"], o["backend"], tuple(o["techniques"].split(","))))
    return found


ENTRIES = read()
CPP = [e for e in ENTRIES if e.backend == "cpp"]
CUDA = [e for e in ENTRIES if e.backend == "cuda"]
SAMPLE = ("cuda_plan_matmul_wmma", "cuda_plan_cumsum_three_pass", "cuda_ext_log_softmax", "cuda_ext_row_extent")
"""Compiled by nvcc where there is one: a few seconds each."""
INLINE = [e for e in CUDA if e.format == "load_inline"]
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not slots(), reason="no NVIDIA GPU on this machine"), pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def found():
    """Every cpp kernel judged once: name -> verdict. No compiled baselines, since no speed is asserted."""

    async def run():
        verdicts = {}
        async with Pool(backend="cpp", limits=LIMITS) as pool:

            async def one(entry):
                task = task_from_path(HERE / "tasks" / "cpp" / f"{entry.task}.py")
                verdicts[entry.name] = await pool.judge(task, candidate_from_path(entry.path), fresh=True)

            # load_inline builds longest: first, so that it does not stand alone at the end.
            await asyncio.gather(*(one(e) for e in sorted(CPP, key=lambda e: e.format != "load_inline")))
        return verdicts

    return asyncio.run(run())


def judged_on_a_gpu(entries: list[Entry]) -> dict:
    """Each entry judged on the first GPU, those of a task together, since they share its baselines: name -> verdict."""

    async def run():
        verdicts = {}
        async with Pool(backend="cuda", limits=CUDA_LIMITS, slots=1) as pool:
            for entry in sorted(entries, key=lambda e: e.task):
                task = task_from_path(HERE / "tasks" / "cuda" / f"{entry.task}.py")
                v = verdicts[entry.name] = await pool.judge(task, candidate_from_path(entry.path), fresh=True)
                print(f"{entry.name}: {v.status.value}/{v.rule} {v.reason or ''} {v.speedup} {v.stages_s}", flush=True)
        return verdicts

    return asyncio.run(run())


@pytest.fixture(scope="module")
def found_on_a_gpu():
    return judged_on_a_gpu([e for e in CUDA if e not in INLINE])


@pytest.fixture(scope="module")
def found_inline():
    return judged_on_a_gpu(INLINE)


def marked(entry: Entry, marks=()):
    reason = REFUSED.get(entry.name)
    return pytest.param(entry, id=entry.name, marks=[*marks, *([pytest.mark.xfail(strict=True, reason=reason)] if reason else [])])


def assert_correct(verdict):
    assert verdict.status.value == "correct", f"{verdict.status.value}/{verdict.rule}: {verdict.reason}\n{verdict.log[-1500:]}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", [marked(e) for e in CPP])
def test_every_honest_kernel_is_correct(entry, found):
    assert_correct(found[entry.name])


@pytest.mark.parametrize("entry", [marked(e) for e in CUDA])
def test_the_static_check_refuses_no_honest_cuda_kernel(entry):
    candidate = candidate_from_path(entry.path)
    assert candidate.format == entry.format
    if entry.format != "plan":
        check.check_candidate(candidate, policy="libraries_allowed", backend="cuda")
        return
    task = task_from_path(HERE / "tasks" / "cuda" / f"{entry.task}.py")
    space = {}
    exec(task.source, space)
    inputs, state = space["get_inputs"](), space["Model"](*space["get_init_inputs"]()).state_dict()
    tensors = {f"x{i}": v for i, v in enumerate(inputs)} | {f"p.{n}": v for n, v in state.items()}
    known = {n: plan.Tensor(shape=tuple(v.shape), dtype=str(v.dtype).removeprefix("torch.")) for n, v in tensors.items()}
    assert plan.bind(plan.parse(candidate.files), known, {}).launches


@pytest.mark.skipif(nvcc() is None, reason="no nvcc on this machine")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SAMPLE)
def test_nvcc_compiles_it(name, tmp_path):
    """A sample; the judge on a GPU compiles all of them."""
    path = HERE / "kernels" / name
    source = path / "kernels.cu"
    text = source.read_text() if source.exists() else "\n".join(f.read_text() for f in sorted((path / "kernels").glob("*.cu")))
    (tmp_path / "unit.cu").write_text(text)
    done = subprocess.run(
        [nvcc(), "-arch=sm_90a", "-std=c++17", "-cubin", "-o", "unit.cubin", "unit.cu"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and (tmp_path / "unit.cubin").read_bytes()[:4] == b"\x7fELF", done.stderr[-2000:]


@pytest.mark.parametrize("entry", [marked(e, on_a_gpu) for e in CUDA if e not in INLINE])
def test_every_honest_cuda_kernel_is_correct(entry, found_on_a_gpu):
    assert_correct(found_on_a_gpu[entry.name])


@pytest.mark.parametrize("entry", [marked(e, on_a_gpu) for e in INLINE])
def test_every_honest_inline_kernel_is_correct(entry, found_inline):
    assert_correct(found_inline[entry.name])


def test_the_corpus_has_what_it_says():
    assert len(CPP) >= 51
    assert len({e.family for e in CPP}) >= 20
    assert {e.format for e in CPP} == {"cuda_extension", "load_inline"}
    assert {e.task for e in CPP} == {p.stem for p in (HERE / "tasks" / "cpp").glob("*.py")}
    wanted = {"openmp", "std_thread", "avx", "templates", "blocked_gemm", "cached_weights", "folded_weights", "views", "channels_last"}
    wanted |= {"in_place", "multiple_outputs", "integer_output", "bool_output", "full_binding", "load_inline"}
    assert wanted <= {t for e in CPP for t in e.techniques}
    assert {e.task for e in CUDA} == {p.stem for p in (HERE / "tasks" / "cuda").glob("*.py")}
    assert {"plan", "cupy", "triton", "cuda_extension", "load_inline"} == {e.format for e in CUDA}
    assert len(CUDA) >= 36 and len(INLINE) >= 8 and len({e.family for e in CUDA}) >= 20
    wanted = {
        "float4",
        "warp_shuffle",
        "padding",
        "cooperative_groups",
        "atomics",
        "templates",
        "grid_stride",
        "half2",
        "bf16",
        "wmma",
        "cp_async",
    }
    wanted |= {
        "channels_last",
        "views",
        "in_place",
        "multiple_outputs",
        "integer_output",
        "bool_output",
        "import_in_init",
        "dispatch",
        "scan",
    }
    assert wanted <= {t for e in CUDA for t in e.techniques}
