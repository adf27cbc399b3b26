"""The stage select on tasks made of seeds, with a judge that says the same of every task."""

from __future__ import annotations

import json
import types

import pytest

from data.journal import append_lines
from data.kernelbench import FINGERPRINTS
from data.operators import FAMILIES
from data.records import Task
from data.selection import pair_of, read_fingerprints
from data.store import read_tasks, write_tasks
from data.synthesis import synthesize
from data.trace import trace
from stages import select
from stages.stage import Job
from tests.data.examples import SOURCE

MEASUREMENT = {"eager_ms": 1.0, "compile_ms": 0.8, "floor_ms": 0.3, "environment": {"cores": 2}, "controls": {"zeros": True}}


def selected(folder, monkeypatch, tasks, families):
    async def measure(job, screened):
        append_lines(job.work / "measured.jsonl", [{"task": t.id, "measurement": MEASUREMENT, "lost": None} for t in screened])

    monkeypatch.setattr(select, "measure", measure)
    write_tasks(folder / "artifacts/tasks/raw/tasks.parquet", tasks)
    section = types.SimpleNamespace(seed=1, test=40, validation=5, min_ms=0.5, max_ms=8.0)
    params = types.SimpleNamespace(select=section, synthesize=types.SimpleNamespace(families=families))
    job = Job(name="select", key=None, params=params, work=folder / "work", root=folder)
    select.run(job)
    out = job.work / "out/artifacts/tasks/selected"
    return read_tasks(out / "tasks.parquet"), [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()], job.summary


@pytest.fixture(scope="module")
def tasks():
    relu = SOURCE.replace("torch.relu(x) * 0.5", "torch.relu(x)")
    options = {"mix": {2: 0.6, 3: 0.4}, "regimes": ["square", "tall", "wide", "outer", "strided"], "max_elements": 1 << 15}
    made = synthesize(count=150, seed=0, families=["activation", "math", "torch.reduction", "torch.scan", "torch.softmax"], **options)
    return [Task(source=relu, origin="synthetic", operators=trace(relu).operators, regime="square"), *made]


def test_seeds_are_kept_away_from_the_exam_and_split_by_pair_and_signature(tasks, tmp_path, monkeypatch):
    kept, dropped, summary = selected(tmp_path, monkeypatch, tasks, ["activation", "torch.scan"])
    exam = {f.operators for f in read_fingerprints(FINGERPRINTS)}
    assert not exam & {t.operators for t in kept}
    assert ("exam_signature", tasks[0].id) in {(d["rule"], d["task"]) for d in dropped}
    test, rest = ([t for t in kept if (t.split == "test") is held] for held in (True, False))
    assert test and rest and not {pair_of(t) for t in test} & {pair_of(t) for t in rest}
    assert not {t.operators for t in test} & {t.operators for t in rest}
    assert summary["figures"]["kept"] + summary["figures"]["dropped"] == len(tasks)
    assert summary["figures"]["test"] == len(test)


def test_the_hand_written_families_are_selected_as_before(tasks, tmp_path, monkeypatch):
    kept, dropped, _ = selected(tmp_path, monkeypatch, tasks, list(FAMILIES))
    assert tasks[0].id in {t.id for t in kept} and dropped == []
    assert sum(t.split == "test" for t in kept) == 40
