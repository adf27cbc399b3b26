"""Measurements survive a kill: what was measured is not measured again, and a cut line costs one task's alone."""

import asyncio
import contextlib
import types

from data.journal import read_lines
from stages import judging, select
from stages.stage import Job


class Judges:
    def __init__(self):
        self.asked = []

    async def measure(self, task, *, worth):
        self.asked.append(task.id)
        return types.SimpleNamespace(to_dict=lambda: {"eager_ms": 1.0})


def test_a_row_after_a_line_cut_by_a_kill_is_kept(tmp_path, monkeypatch):
    judges = Judges()

    @contextlib.asynccontextmanager
    async def pool(job):
        yield judges

    monkeypatch.setattr(judging, "pool", pool)
    job = Job(name="select", key=None, params=types.SimpleNamespace(select=types.SimpleNamespace(min_ms=0.5, max_ms=8.0)), work=tmp_path / "work", root=tmp_path)
    tasks = [types.SimpleNamespace(id=name) for name in "abc"]
    path = job.work / "measured.jsonl"
    asyncio.run(select.measure(job, tasks[:2]))
    path.write_bytes(path.read_bytes()[:-9])
    asyncio.run(select.measure(job, tasks))
    assert judges.asked == ["a", "b", "b", "c"]
    assert [row["task"] for row in read_lines(path)] == ["a", "b", "c"]
