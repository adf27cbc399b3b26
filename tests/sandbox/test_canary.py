"""Known cheats and known honest kernels among the others: what they count, when they alarm, and that nobody else sees them."""

import asyncio
import collections
import dataclasses
import json

import gallery
import pytest
from conftest import LIMITS, known_task

from data.records import BACKENDS, Status
from sandbox.canary import KINDS, Watch, load
from sandbox.pool import Pool, let_go

REASONS = collections.defaultdict(lambda: ("incorrect", None), no_kernel_of_its_own=("rejected", "torch_op"))
"""What each cheat on the CPU must fail by: one that does not build would be refused and show nothing."""


@pytest.fixture(scope="module")
def flown():
    """Every canary of the CPU once; baselines are made up, so that no test waits for torch.compile."""
    let_go()
    baselines = known_task("relu").baselines
    canaries = [dataclasses.replace(c, task=dataclasses.replace(c.task, baselines=baselines)) for c in load("cpp")]

    async def run():
        async with Pool(backend="cpp", limits=LIMITS) as pool:
            watch = Watch(pool, rate=0.0, canaries=canaries)
            found = await asyncio.gather(*(watch.fly(c) for c in canaries))
            return list(zip(canaries, found, strict=True)), watch, dict(pool.counts), dict(pool.cache)

    return asyncio.run(run())


def test_every_cheat_fails_for_its_own_reason_and_every_honest_kernel_passes(flown):
    for canary, (outcome, verdict) in flown[0]:
        if canary.kind == "honest":
            assert (outcome, verdict.status) == ("credited", Status.CORRECT), (canary.name, verdict)
        else:
            assert (outcome, verdict.status.value, verdict.rule) == ("refused", *REASONS[canary.name]), (canary.name, verdict)
    watch = flown[1]
    assert watch.counts == {("honest", "credited"): 4, ("cheat", "refused"): 9} and not watch.alarm and not watch.alarms


def test_canaries_are_in_no_count_and_no_cache_of_the_callers(flown):
    assert flown[2]["judged"] == 0 and flown[3] == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_backends_have_canaries_of_both_kinds(backend):
    canaries = load(backend)
    assert {c.kind for c in canaries} == set(KINDS) and len({c.name for c in canaries}) == len(canaries)


def test_a_credited_cheat_and_a_refused_honest_kernel_are_alarms(capsys):
    """The labels are swapped: what the judge then says is wrong."""
    let_go()
    own = {c.name: dataclasses.replace(c, task=dataclasses.replace(c.task, baselines=known_task("relu").baselines)) for c in load("cpp")}

    async def run():
        async with Pool(backend="cpp", limits=LIMITS, slots=1) as pool:
            watch = Watch(pool, rate=0.0, canaries=[])
            await watch.fly(dataclasses.replace(own["no_kernel_of_its_own"], kind="honest"))
            first = watch.alarm
            await watch.fly(dataclasses.replace(own["relu"], kind="cheat"))
            return first, watch

    first, watch = asyncio.run(run())
    assert first and watch.alarm and watch.counts == {("honest", "refused"): 1, ("cheat", "credited"): 1}
    assert [a["canary"] for a in watch.alarms] == ["no_kernel_of_its_own", "relu"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "ALARM" in line]
    assert len(lines) == 2 and json.loads(lines[0].partition("refused: ")[2])["rule"] == "torch_op"


def test_a_canary_rides_along_at_most_one_at_a_time():
    let_go()
    entry = next(e for e in gallery.read("cheats") if e.name == "torch_wrapper")
    cheap = next(c for c in load("cpp") if c.name == "no_kernel_of_its_own")

    async def run():
        async with Pool(backend="cpp", limits=LIMITS, slots=1) as pool:
            watch, most = Watch(pool, rate=1.0, canaries=[cheap]), 0
            for _ in range(3):
                await pool.judge(known_task(entry.task), entry.candidate(), fresh=True, policy=entry.policy)
                most = max(most, len(watch.jobs))
            await watch.close()
            before = watch.counts.total()
            await pool.judge(known_task(entry.task), entry.candidate(), fresh=True, policy=entry.policy)
            return most, before, watch, pool

    most, before, watch, pool = asyncio.run(run())
    assert most == 1 and 1 <= before <= 3 and watch.counts == {("cheat", "refused"): before}
    assert pool.counts["judged"] == 4 and pool.watch is None


def test_a_pool_judges_with_the_settings_of_each_question_and_forgets_in_the_end(monkeypatch):
    let_go()
    monkeypatch.setattr("sandbox.pool.REMEMBERED", 2)
    entry = next(e for e in gallery.read("cheats") if e.name == "torch_wrapper")

    async def run():
        async with Pool(backend="cpp", limits=LIMITS, slots=1) as pool:
            found = [await pool.judge(known_task(entry.task), entry.candidate(), fresh=False, policy=entry.policy, precision=p) for p in ("fp32", "bf16", "fp32", "bf16", None)]
            return found, pool

    found, pool = asyncio.run(run())
    assert [v.precision for v in found] == ["fp32", "bf16", "fp32", "bf16", "fp32"]
    assert pool.counts["cached"] == 2 and pool.counts["judged"] == 3 and len(pool.cache) == 2
