from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time

import pytest

from data.records import Baselines, Task, Trajectory
from data.store import SCHEMA_VERSION, TrajectoryStore, read_tasks, read_trajectories, schema, write_tasks
from tests.data.examples import trajectory_of

ROOT = pathlib.Path(__file__).parents[2]


def _float32(values):
    return None if values is None else tuple(struct.unpack("f", struct.pack("f", v))[0] for v in values)


def _rounded(trajectory: Trajectory) -> Trajectory:
    turns = tuple(dataclasses.replace(t, action_logprobs=_float32(t.action_logprobs)) for t in trajectory.turns)
    return dataclasses.replace(trajectory, turns=turns)


def test_trajectories_come_back_whole_but_for_float32_logprobs(tmp_path):
    written = [
        trajectory_of(s, task=t, status=status)
        for s, (t, status) in enumerate([("t1", "correct"), ("t0", "incorrect"), ("t0", "rejected")])
    ]
    store = TrajectoryStore(tmp_path / "live", 1)
    for trajectory in written:
        store.add(trajectory)
    assert store.publish(tmp_path / "out") == 3
    back = read_trajectories(tmp_path / "out")
    assert [(t.task, t.sample) for t in back] == [("t0", 1), ("t0", 2), ("t1", 0)]
    assert {t.id: t for t in back} == {t.id: _rounded(t) for t in written}


def test_a_trajectory_without_turns_or_reward_comes_back(tmp_path):
    lost = Trajectory(task="t", checkpoint="k", stage="rollout", round=2, sample=0, turns=(), stop="infra_error", error="no disk")
    store = TrajectoryStore(tmp_path, 2)
    store.add(lost)
    store.publish(tmp_path / "out")
    assert read_trajectories(tmp_path / "out") == [lost]


def test_adding_the_same_trajectory_again_overwrites_it(tmp_path):
    store = TrajectoryStore(tmp_path / "live", 1)
    store.add(trajectory_of(reward=1.0))
    store.add(trajectory_of(reward=3.0))
    assert store.finished() == {trajectory_of().id}
    store.publish(tmp_path / "out")
    assert [t.reward for t in read_trajectories(tmp_path / "out")] == [3.0]


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "flipped", "renamed"])
def test_a_broken_shard_is_dropped_and_said_and_the_rest_stays(tmp_path, caplog, damage):
    store = TrajectoryStore(tmp_path / "live", 1)
    for sample in (0, 1):
        store.add(trajectory_of(sample))
    broken = store.folder / f"{trajectory_of(0).id}.parquet"
    whole = broken.read_bytes()
    if damage == "renamed":
        broken.rename(broken.with_stem("0" * 16))
    else:
        flipped = whole[:60] + bytes(b ^ 0xFF for b in whole[60:90]) + whole[90:]
        broken.write_bytes({"truncated": whole[: len(whole) // 2], "garbage": b"PAR1" * 50, "empty": b"", "flipped": flipped}[damage])
    again = TrajectoryStore(tmp_path / "live", 1)
    assert again.finished() == {trajectory_of(1).id}
    assert "dropped a broken shard" in caplog.text
    assert again.publish(tmp_path / "out") == 1


def test_no_flipped_bit_in_the_data_goes_unseen(tmp_path):
    import pyarrow.parquet as pq

    store = TrajectoryStore(tmp_path / "live", 1)
    store.add(trajectory_of())
    shard = store.folder / f"{trajectory_of().id}.parquet"
    store.publish(tmp_path / "whole")
    wanted, whole = read_trajectories(tmp_path / "whole"), shard.read_bytes()
    group = pq.read_metadata(shard).row_group(0)
    end = max(group.column(i).data_page_offset + group.column(i).total_compressed_size for i in range(group.num_columns))
    for at in range(8, min(end, len(whole)), 23):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        if TrajectoryStore(tmp_path / "live", 1).finished():
            store.publish(tmp_path / "out")
            assert read_trajectories(tmp_path / "out") == wanted, at


def test_publish_never_shows_half_a_folder_and_replaces_an_old_one(tmp_path):
    store = TrajectoryStore(tmp_path / "live", 1)
    store.add(trajectory_of(0))
    store.publish(tmp_path / "out")
    store.add(trajectory_of(1))
    store.publish(tmp_path / "out")
    assert len(read_trajectories(tmp_path / "out")) == 2
    names = sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert names == [f"{d}/round=1/part-000.parquet" for d in ("episodes", "tokens", "turns")]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["live", "out"]


def test_large_rounds_are_split_into_parts_that_hold_whole_trajectories(tmp_path, monkeypatch):
    monkeypatch.setattr("data.store.PART_BYTES", 1)
    store = TrajectoryStore(tmp_path / "live", 1)
    for sample in range(3):
        store.add(trajectory_of(sample))
    store.publish(tmp_path / "out")
    assert len(list((tmp_path / "out" / "turns").rglob("*.parquet"))) == 3
    assert {t.sample for t in read_trajectories(tmp_path / "out")} == {0, 1, 2}


def test_an_empty_round_publishes_readable_empty_datasets(tmp_path):
    assert TrajectoryStore(tmp_path / "live", 1).publish(tmp_path / "out") == 0
    assert read_trajectories(tmp_path / "out") == []


WRITER = """
import sys
from data.store import TrajectoryStore
from tests.data.examples import trajectory_of
store = TrajectoryStore(sys.argv[1], 1)
store.add(trajectory_of(0))
print("ready", flush=True)
sample = 1
while True:
    store.add(trajectory_of(sample % 40))
    sample += 1
"""


def test_kill_9_in_the_middle_of_writing_leaves_only_whole_trajectories(tmp_path):
    for attempt in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.15 + 0.07 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        store = TrajectoryStore(tmp_path, 1)
        known = {trajectory_of(s).id for s in range(40)}
        assert store.finished() and store.finished() <= known
        assert not list(store.folder.glob("*.tmp-*"))
        assert store.publish(tmp_path / "out") == len(store.finished()) == len(read_trajectories(tmp_path / "out"))


def test_logprobs_are_float32_and_ids_int32_on_disk(tmp_path):
    import pyarrow.parquet as pq

    store = TrajectoryStore(tmp_path / "live", 7)
    store.add(trajectory_of(round=7))
    store.publish(tmp_path / "out")
    file = pq.ParquetFile(tmp_path / "out/tokens/round=7/part-000.parquet")
    types = {field.name: str(field.type) for field in file.schema_arrow}
    assert "float" in types["action_logprobs"] and "double" not in types["action_logprobs"]
    assert "int32" in types["action_ids"]
    assert file.schema_arrow.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
    group = file.metadata.row_group(0)
    assert {group.column(i).compression for i in range(group.num_columns)} == {"ZSTD"}


def test_files_of_an_older_schema_read_with_nulls_and_newer_ones_are_refused(tmp_path):
    import pyarrow.parquet as pq

    write_tasks(tmp_path / "tasks.parquet", [Task(source="x", origin="user", regime="odd")])
    table = pq.read_table(tmp_path / "tasks.parquet")
    pq.write_table(table.drop_columns(["regime"]), tmp_path / "old.parquet")
    assert read_tasks(tmp_path / "old.parquet") == [Task(source="x", origin="user")]
    pq.write_table(table.replace_schema_metadata({"schema_version": "99"}), tmp_path / "new.parquet")
    with pytest.raises(ValueError, match="got schema_version 99, wanted 1 or older"):
        read_tasks(tmp_path / "new.parquet")


def test_a_file_that_is_no_parquet_is_one_clear_line(tmp_path):
    (tmp_path / "tasks.parquet").write_text("hello")
    with pytest.raises(ValueError, match="wanted a whole Parquet file") as caught:
        read_tasks(tmp_path / "tasks.parquet")
    assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        read_tasks(tmp_path / "absent.parquet")
    with pytest.raises(ValueError, match="wanted a folder with episodes"):
        read_trajectories(tmp_path)


def test_tasks_come_back_whole_and_by_split(tmp_path):
    base = Baselines(eager_ms=1.5, compile_ms=None, environment={"cores": 2})
    tasks = [
        Task(source="a", origin="synthetic", operators=("relu", "sum"), split="train", regime="odd", baselines=base, floor_ms=0.1),
        Task(source="b", origin="user", mode="train", precision="bf16", split="test"),
        Task(source="c", origin="kernelbench/1/19"),
    ]
    write_tasks(tmp_path / "deep/tasks.parquet", tasks)
    assert read_tasks(tmp_path / "deep/tasks.parquet") == tasks
    assert read_tasks(tmp_path / "deep/tasks.parquet", split="test") == [tasks[1]]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["tasks.parquet"]
    write_tasks(tmp_path / "none.parquet", [])
    assert read_tasks(tmp_path / "none.parquet") == []


def test_a_task_cannot_be_written_twice(tmp_path):
    with pytest.raises(ValueError, match="got 1 repeated ids"):
        write_tasks(tmp_path / "tasks.parquet", [Task(source="a", origin="user")] * 2)


def test_wrong_rounds_and_dataset_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="round: got 'r01'"):
        TrajectoryStore(tmp_path, "r01")
    with pytest.raises(ValueError, match="got round 1, wanted 2"):
        TrajectoryStore(tmp_path, 2).add(trajectory_of(round=1))
    with pytest.raises(ValueError, match="dataset: got 'turn'"):
        schema("turn")


def test_importing_the_store_loads_neither_pyarrow_nor_duckdb():
    code = "import sys, data.store; print([m for m in ('pyarrow', 'duckdb', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip() == "[]"
