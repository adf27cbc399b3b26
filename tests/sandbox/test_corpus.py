"""The honest corpus: kernels in tests/sandbox/corpus that must be judged `correct`.

First line of each: # corpus: task=NAME family=NAME format=NAME backend=cpp techniques=a,b
"""

import asyncio
import dataclasses
import pathlib

import pytest
import torch

from data.records import Baselines
from sandbox.cpp import cpu_model
from sandbox.judge import Limits, candidate_from_path, task_from_path
from sandbox.pool import Pool

HERE = pathlib.Path(__file__).parent / "corpus"
LIMITS = Limits(call_s=2.0, build_s=120.0, total_s=60.0, memory_bytes=6 << 30, calls=24)
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
        main = path / "model_new.py" if path.is_dir() else path
        if main.suffix != ".py" or not main.exists():
            continue
        words = main.read_text().partition("\n")[0].removeprefix("# corpus: ").split()
        o = dict(w.split("=", 1) for w in words)
        found.append(Entry(path.stem, path, o["task"], o["family"], o["format"], o["backend"], tuple(o["techniques"].split(","))))
    return found


ENTRIES = read()
CPP = [e for e in ENTRIES if e.backend == "cpp"]


@pytest.fixture(scope="session")
def found():
    """Every cpp kernel judged once: name -> verdict. Made-up baselines, since no speed is asserted."""
    environment = {"cpu": cpu_model(), "torch": torch.__version__, "threads": 1}
    baselines = Baselines(eager_ms=1.0, compile_ms=1.0, environment=environment)

    async def run():
        verdicts = {}
        async with Pool(backend="cpp", limits=LIMITS) as pool:

            async def one(entry):
                task = dataclasses.replace(task_from_path(HERE / "tasks" / "cpp" / f"{entry.task}.py"), baselines=baselines)
                verdicts[entry.name] = await pool.judge(task, candidate_from_path(entry.path), fresh=True)

            # load_inline builds longest: first, so that it does not stand alone at the end.
            await asyncio.gather(*(one(e) for e in sorted(CPP, key=lambda e: e.format != "load_inline")))
        return verdicts

    return asyncio.run(run())


def marked(entry: Entry):
    reason = REFUSED.get(entry.name)
    marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
    return pytest.param(entry, id=entry.name, marks=marks)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", [marked(e) for e in CPP])
def test_every_honest_kernel_is_correct(entry, found):
    verdict = found[entry.name]
    assert verdict.status.value == "correct", f"{verdict.status.value}/{verdict.rule}: {verdict.reason}\n{verdict.log[-1500:]}"


def test_the_corpus_has_what_it_says():
    """State of the cpp half; the goal of 80 kernels needs the cuda half."""
    assert len(CPP) >= 51
    assert len({e.family for e in CPP}) >= 20
    assert {e.format for e in CPP} == {"cuda_extension", "load_inline"}
    assert {e.task for e in CPP} == {p.stem for p in (HERE / "tasks" / "cpp").glob("*.py")}
    wanted = {"openmp", "std_thread", "avx", "templates", "blocked_gemm", "cached_weights", "folded_weights", "views", "channels_last"}
    wanted |= {"in_place", "multiple_outputs", "integer_output", "bool_output", "full_binding", "load_inline"}
    assert wanted <= {t for e in CPP for t in e.techniques}
