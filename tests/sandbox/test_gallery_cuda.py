"""Cheats and honest twins of backend cuda: their sources are looked at everywhere, judged on a GPU. Run with -s to see every verdict."""

import ast
import asyncio
import json

import gallery
import pytest

from sandbox import check, cudriver, plan
from sandbox.backends import Limits
from sandbox.cuda import slots
from sandbox.device_code import PRELUDE
from sandbox.pool import Pool

CHEATS, HONEST = gallery.read("cheats", backend="cuda"), gallery.read("honest", backend="cuda")
ENTRIES = CHEATS + HONEST
LIMITS = Limits(call_s=5.0, build_s=60.0)
SAME = 0.9
"""A cheat that is right but plays with what is measured may not take less than this share of its honest twin's time."""
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not slots(), reason="no NVIDIA GPU on this machine"), pytest.mark.timeout(600)]


def device_sources(entry: gallery.Entry) -> list[str]:
    """Device code of an entry that NVRTC can compile by itself: a plan's kernels and the string of a CuPy module."""
    files = entry.candidate().files
    if "plan.json" in files:
        return [PRELUDE + files["kernels.cu"]]
    texts = [n.value for n in ast.walk(ast.parse(files["model_new.py"])) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [text for text in texts if "__global__" in text]


@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_device_code_compiles_for_a_card_without_a_card(entry):
    sources = device_sources(entry)
    if not sources:
        pytest.skip("built by nvcc")
    try:
        cudriver.nvrtc()
    except cudriver.CudaError:
        pytest.skip("no libnvrtc here")
    for source in sources:
        assert cudriver.compile_source(source, "sm_90")[0][:4] == b"\x7fELF"


@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_nothing_is_refused_before_it_runs(entry):
    """What these entries do wrong, or seem to, shows when they run: a format error or a static rule would hide it."""
    candidate = entry.candidate()
    if candidate.format == "plan":
        parsed = plan.parse(candidate.files)
        inputs = {"x0": plan.Tensor(shape=(2048, 4096), dtype="float32")}
        assert plan.bind(parsed, inputs, {}).launches
    else:
        check.check_candidate(candidate, policy=entry.policy, backend="cuda")


@pytest.fixture(scope="module")
def found():
    """Every entry judged on the first GPU, twins beside their cheats: name -> the first verdict that it should not get, else the last."""

    async def run():
        verdicts = {}
        async with Pool(backend="cuda", limits=LIMITS, slots=1) as pool:
            for entry in sorted(ENTRIES, key=lambda e: e.task):
                for _ in range(entry.times):
                    verdict = await pool.judge(gallery.task(entry.task), entry.candidate(), fresh=True, policy=entry.policy)
                    print("\n", entry.name, json.dumps(verdict.to_dict()), flush=True)
                    verdicts[entry.name] = verdict
                    if not entry.accepts(verdict):
                        break
        return verdicts

    return asyncio.run(run())


def judged(cases):
    return [pytest.param(e, id=e.name, marks=on_a_gpu) for e in cases]


@pytest.mark.parametrize("entry", judged(ENTRIES))
def test_every_cheat_and_every_honest_twin_gets_its_verdict(entry, found):
    verdict = found[entry.name]
    assert entry.accepts(verdict), (
        f"wanted {entry.wanted}, got {verdict.status.value}/{verdict.rule}: {verdict.reason}\n{verdict.log[-1500:]}"
    )
    if entry.min_ms:
        assert verdict.times_ms["candidate"] > entry.min_ms
    if verdict.speedup is not None:
        assert verdict.speedup["eager"][0] <= entry.max_speedup


@pytest.mark.parametrize("entry", judged(e for e in CHEATS if e.wanted == ["correct"]))
def test_a_cheat_that_is_right_gains_nothing_over_its_honest_twin(entry, found):
    mine, twin = found[entry.name], found[entry.twin]
    for times in ("device_ms", "times_ms"):
        ours, theirs = getattr(mine, times), getattr(twin, times)
        if ours and theirs:
            assert ours["candidate"] > SAME * theirs["candidate"], times


@pytest.mark.parametrize("entry", judged(e for e in CHEATS if e.candidate().format != "plan"))
def test_the_next_candidate_is_judged_as_ever(entry):
    """A sticky error, a stream left current or a pinned part of the L2 must not reach the slot's next candidate."""
    twin = next(e for e in HONEST if e.name == entry.twin)

    async def run():
        async with Pool(backend="cuda", limits=LIMITS, slots=1) as pool:
            return [await pool.judge(gallery.task(e.task), e.candidate(), fresh=True, policy=e.policy) for e in (entry, twin)]

    cheat, honest = asyncio.run(run())
    assert entry.accepts(cheat) and honest.correct, (cheat.reason, honest.reason)


def test_kinds_that_only_a_gpu_has_are_here():
    assert {k for e in CHEATS for k in e.kinds} >= {"T1", "T10", "T13", "C2"}
    assert {e.twin for e in CHEATS} == {e.name for e in HONEST}
