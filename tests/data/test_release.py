from __future__ import annotations

import dataclasses
import json

import pytest

from data.operators import FAMILIES
from data.records import Baselines
from data.regimes import REGIMES
from data.release import COLUMNS, Entry, main, read_release, write_release
from data.store import write_tasks
from data.synthesis import synthesize


@pytest.fixture(scope="module")
def entries():
    options = {"families": list(FAMILIES), "regimes": list(REGIMES), "mix": {1: 0.4, 2: 0.6}}
    large = synthesize(count=30, seed=1, max_elements=1 << 24, **options)
    small = synthesize(count=10, seed=1, max_elements=1 << 16, **options)
    measured = dataclasses.replace(large[0], baselines=Baselines(eager_ms=2.0, compile_ms=None, environment={"gpu": "some"}), floor_ms=1.5)
    first = Entry(task=dataclasses.replace(measured, split="test"), backend="cuda", attainable_ms=1.75, controls={"zeros": True})
    rest = [Entry(task=dataclasses.replace(t, split="train"), backend="cuda") for t in large[1:]]
    return [first, *rest, *(Entry(task=dataclasses.replace(t, split="train"), backend="cpp") for t in small)]


def test_a_released_set_comes_back_task_by_task(entries, tmp_path):
    path = write_release(tmp_path, entries, how="a test")
    back = {t.id: t for t in read_release(path)}
    assert back == {e.task.id: e.task for e in entries}
    assert {t.id for t in read_release(path, backend="cpp")} == {e.task.id for e in entries if e.backend == "cpp"}
    assert [t.id for t in read_release(path, split="test")] == [entries[0].task.id]


def test_the_file_holds_what_the_card_says(entries, tmp_path):
    import pyarrow.parquet as pq

    rows = pq.read_table(write_release(tmp_path, entries, how="a test")).to_pylist()
    assert set(rows[0]) == set(COLUMNS)
    first = next(r for r in rows if r["split"] == "test")
    assert (first["eager_ms"], first["compile_ms"], first["floor_ms"], first["attainable_ms"]) == (2.0, None, 1.5, 1.75)
    assert json.loads(first["controls"]) == {"zeros": True} and first["shapes"] and first["family"]
    text = (tmp_path / "README.md").read_text()
    for said in ("40 PyTorch modules", "Apache-2.0", "Made by a test", "1 tasks are measured", "| cpp | 10 |", "| cuda | 30 |", *COLUMNS):
        assert said in text


def test_a_set_with_a_wrong_label_a_task_twice_or_too_many_bytes_is_refused_and_leaves_no_file(entries, tmp_path):
    with pytest.raises(ValueError, match="wanted each task once"):
        write_release(tmp_path, [entries[0], entries[0]], how="")
    wrong = dataclasses.replace(entries[0], task=dataclasses.replace(entries[0].task, operators=("tanh",) * 9))
    with pytest.raises(ValueError, match="got the label"):
        write_release(tmp_path, [wrong], how="")
    with pytest.raises(ValueError, match="for 40 tasks, wanted at most 1000"):
        write_release(tmp_path, entries, how="", most_bytes=1000)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="backend: got 'tpu'"):
        Entry(task=entries[0].task, backend="tpu")


def test_the_command_joins_the_gpu_set_and_its_twin(entries, tmp_path, capsys):
    for name in ("cuda", "cpp"):
        write_tasks(tmp_path / f"{name}.parquet", [e.task for e in entries if e.backend == name])
    line = {"task": entries[1].task.id, "measurement": {"controls": {"copy": True}}, "lost": None}
    (tmp_path / "measured.jsonl").write_text(json.dumps(line) + "\n")
    words = ["--twin", str(tmp_path / "cpp.parquet"), "--measured", str(tmp_path / "measured.jsonl"), "--out", str(tmp_path / "set")]
    assert main([str(tmp_path / "cuda.parquet"), *words]) == 0
    assert "40 tasks" in capsys.readouterr().out
    assert len(read_release(tmp_path / "set/tasks.parquet", backend="cpp")) == 10
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(ValueError, match="wanted a Parquet file"):
        read_release(tmp_path / "bad.parquet")
