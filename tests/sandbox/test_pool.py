"""What a pool promises beside its verdicts: how it ends, and who waits."""

import asyncio
import pathlib

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
