"""What a pool promises beside its verdicts: how it ends, and who waits."""

import asyncio
import pathlib
import uuid

import asking
import pytest
from conftest import LIMITS, known_task

from data.records import SandboxError
from sandbox import pool as pools
from sandbox.pool import Pool, Slot

SLOW = asking.module("while True:\n    pass")


def _children(pid: int) -> set[int]:
    return {int(p) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()}


def test_questions_in_flight_and_waiting_end_with_a_sandbox_error_when_the_pool_is_left():
    """The judge process is gone while a candidate runs: no verdict, no AttributeError, no process."""
    pools.let_go()

    async def run():
        async with Pool(backend="cpp", limits=LIMITS, slots=1) as pool:
            task = known_task("relu")
            asked = [asyncio.create_task(pool.judge(task, SLOW, fresh=True, policy="mixed")) for _ in range(3)]
            zygote = pool.slots[0].zygote.pid
            while len(_children(zygote)) < 3:  # the judge, the keepers of reference and candidate
                await asyncio.sleep(0.02)
        found = await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(SandboxError, match="left"):
            await pool.judge(task, SLOW, fresh=True, policy="mixed")
        return found, zygote

    found, zygote = asyncio.run(run())
    assert [type(f) for f in found] == [SandboxError] * 3, found
    assert not pathlib.Path(f"/proc/{zygote}").exists()


def test_leaving_while_a_task_is_made_ready_says_nothing_of_the_task():
    pools.let_go()
    task = asking.task("import time; time.sleep(1.0)\nreturn x * 2", "torch.randn(64)")

    async def run():
        async with Pool(backend="cpp", limits=LIMITS, slots=1) as pool:
            asked = asyncio.create_task(pool.judge(task, SLOW, fresh=True, policy="mixed"))
            while not _children(pool.slots[0].zygote.pid):
                await asyncio.sleep(0.02)
            await asyncio.sleep(1.0)
        return (await asyncio.gather(asked, return_exceptions=True))[0]

    assert isinstance(asyncio.run(run()), SandboxError)


def test_a_pool_that_does_not_come_up_gives_its_leases_back(monkeypatch):
    pools.let_go()

    def fails(self):
        raise SandboxError("no zygote")

    async def run():
        async with Pool(backend="cpp", limits=LIMITS, slots=1):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(Slot, "start", fails)
        with pytest.raises(SandboxError, match="no zygote"):
            asyncio.run(run())
    assert not pools._held


def test_a_launched_pool_that_is_not_entered_leaves_nothing():
    pools.let_go()
    pool = Pool(backend="cpp", limits=LIMITS, slots=1).launch()
    zygote = pool.slots[0].zygote.pid
    pool.drop()
    assert not pools._held and not pathlib.Path(f"/proc/{zygote}").exists()


def _relu(line: str = ""):
    """A right candidate that no cache has seen, with a line of its own."""
    kernel = f'extern "C" void relu(const float* x, float* y, long n) {{ for (long i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : 0; {line} }}'
    return asking.light("relu(x, out, x.numel())", f"// {uuid.uuid4()}\n{kernel}")


def test_builders_compile_while_no_slot_is_held_and_what_does_not_build_is_told_first(tmp_path, monkeypatch):
    pools.let_go()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task, good, bad = (
        asking.task("return F.relu(x)", "torch.randn(256, 64)"),
        [_relu() for _ in range(3)],
        [_relu(f"word{n}") for n in range(2)],
    )
    held, order = [], []

    async def run():
        async with Pool(backend="cpp", limits=LIMITS, slots=1, builders=2, policy="mixed") as pool:
            assert await pool.builders.fails(bad[0], LIMITS) and not await pool.builders.fails(good[0], LIMITS)
            built = {file.suffix for file in (tmp_path / "cuda-agent" / "builds").iterdir()}
            held.append(pool.idle == pool.slots)

            async def one(candidate):
                order.append((await pool.judge(task, candidate, fresh=True)).status.value)

            taken = await pool._take("another task", False)
            asked = [asyncio.create_task(one(c)) for c in good[1:] + bad]
            while len(pool.waiting) < 4:
                await asyncio.sleep(0.01)
            pool._give(taken)
            await asyncio.gather(*asked)
            zygote = pool.builders.zygote.pid
        return built, zygote

    built, zygote = asyncio.run(run())
    assert built == {".so", ".json"} and held == [True]
    assert order == ["compile_error"] * 2 + ["correct"] * 2
    assert not pathlib.Path(f"/proc/{zygote}").exists() and not pools._held


def test_a_group_stops_at_the_first_verdict_that_is_enough():
    pools.let_go()

    async def run():
        async with Pool(backend="cpp", limits=LIMITS, slots=1, policy="mixed") as pool:
            task = known_task("relu")
            found = await pool.judge_group(task, [asking.text("no python"), _relu(), SLOW], fresh=True, enough=lambda v: v.correct)
            whole = await pool.judge_group(task, [asking.text("no python"), asking.text("class ModelNew: pass")], fresh=True)
            return found, whole, pool.idle == pool.slots

    found, whole, idle = asyncio.run(run())
    assert [f and f.status.value for f in found] == ["format_error", "correct", None] and idle
    assert [v.status.value for v in whole] == ["format_error"] * 2


def test_only_cpp_has_builders():
    with pytest.raises(ValueError, match="builders: got 2 on cuda, wanted 0"):
        Pool(backend="cuda", builders=2)


def test_a_task_stays_with_the_slot_that_has_it_ready_until_a_crowd_waits_for_that_slot():
    """No process: who gets which slot is decided before any question is asked."""

    class Idle:
        closed = False

        def __init__(self, name: str):
            self.name, self.backend, self.recent = name, "cpp", []

    Idle.distance, Idle.expect = Slot.distance, Slot.expect

    async def run():
        pool = Pool(backend="cpp")
        a, b = pool.slots = [Idle("a"), Idle("b")]
        pool.idle = [a, b]
        first = [asyncio.create_task(pool._take(task, False)) for task in ("one", "one", "two", "two")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [t.done() for t in first] == [True, False, True, False]
        slots = {"one": first[0].result(), "two": first[2].result()}
        assert slots["one"] is not slots["two"]
        # The slot of "two" is free and leaves what is ready beside it, though it has nothing else to do
        pool._give(slots["two"])
        pool._give(await first[3])
        assert first[3].result() is slots["two"] and not first[1].done() and pool.idle == [slots["two"]]
        crowd = [asyncio.create_task(pool._take("one", False)) for _ in range(pools.CROWD - 1)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert first[1].done() and first[1].result() is slots["two"], "a crowd waits: the other slot makes it ready too"
        for late in crowd:
            late.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)

    asyncio.run(run())
