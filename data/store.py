"""Tasks and trajectories as Parquet: one row a turn with its own tokens only, explicit schemas, shards that survive kill -9.

A running stage adds one shard a trajectory (`TrajectoryStore.add`); `publish` compacts them into three datasets
`turns/`, `tokens/`, `episodes/`, each partitioned as `round=N/part-000.parquet`. Token ids are the truth, texts are for people.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from data.records import Baselines, Candidate, Task, ToolCall, Trajectory, Turn, Verdict

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
"""Columns are only ever added, as nullable ones; anything else raises this number."""
PART_BYTES = 128 << 20
"""Roughly the most uncompressed bytes of one published part."""
ROW_GROUP = 4096
DATASETS = ("turns", "tokens", "episodes")


# -------------------------------------------------------------------------------------------- schemas


def _verdict_fields() -> list[tuple[str, Any]]:
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    interval = [(f"speedup_{base}_{end}", number) for base in ("eager", "compile") for end in ("low", "median", "high")]
    return [
        ("status", text),
        ("correct", pa.bool_()),
        ("reason", text),
        ("rule", text),
        ("flags", pa.list_(text)),
        ("backend", text),
        ("policy", text),
        ("candidate_ms", number),
        ("eager_ms", number),
        ("compile_ms", number),
        *interval,
        ("own_kernel_share", number),
        ("speed_of_light", number),
        ("verdict", text),
        ("candidate_id", text),
        ("candidate", text),
    ]


def verdict_columns() -> list[str]:
    """The columns by which turns and episodes describe a judgement."""
    return [name for name, _ in _verdict_fields()]


@functools.cache
def schema(dataset: str):
    """The pyarrow schema of `turns`, `tokens`, `episodes`, `tasks` or `shard` (a trajectory's turns with their tokens).

    `round` is no column of the three published datasets: it is their partition. Milliseconds, seconds; ids int32, log-probs float32.
    """
    import pyarrow as pa

    text, number, small, count = pa.string(), pa.float64(), pa.int32(), pa.int32()
    key = [("trajectory", text), ("turn", small)]
    ids = pa.list_(pa.int32())
    tokens = [("prompt_ids", ids), ("action_ids", ids), ("action_logprobs", pa.list_(pa.float32())), ("observation_ids", ids)]
    owner = [("task", text), ("checkpoint", text), ("stage", text), ("sample", small)]
    counts = [("n_prompt", count), ("n_action", count), ("n_obs", count)]
    seconds = [("generate_s", number), ("tools_s", number), ("judge_s", number)]
    turns = [
        *key,
        ("turn_id", text),
        *owner,
        ("text", text),
        ("observation", text),
        ("tools", pa.list_(text)),
        ("tool_calls", text),
        *counts,
        ("finish_reason", text),
        ("policy_version", text),
        ("trainable", pa.bool_()),
        *seconds,
        ("seconds", text),
        *_verdict_fields(),
    ]
    episodes = [
        ("trajectory", text),
        *owner,
        ("stop", text),
        ("n_turns", small),
        ("reward", number),
        ("error", text),
        ("first_correct_turn", small),
        *counts,
        *seconds,
        *_verdict_fields(),
    ]
    tasks = [
        ("id", text),
        ("source", text),
        ("origin", text),
        ("operators", pa.list_(text)),
        ("mode", text),
        ("precision", text),
        ("split", text),
        ("regime", text),
        ("eager_ms", number),
        ("compile_ms", number),
        ("environment", text),
        ("floor_ms", number),
    ]
    fields = {"turns": turns, "tokens": key + tokens, "episodes": episodes, "tasks": tasks, "shard": turns + tokens}
    if dataset not in fields:
        raise ValueError(f"dataset: got {dataset!r}, wanted {', '.join(fields)}")
    return pa.schema([pa.field(name, kind) for name, kind in fields[dataset]])


# ---------------------------------------------------------------------------------------------- files


def _write(path: pathlib.Path, tables: Iterable[Any], dataset: str, metadata: dict[str, str]) -> None:
    """One complete file or none: temporary name that does not end in .parquet, fsync, rename, fsync of the folder."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    full = schema(dataset).with_metadata({"schema_version": str(SCHEMA_VERSION), **metadata})
    plain = ("text", "observation", "source", "candidate", "verdict", "tool_calls", "reason", "turn_id")
    packed = [f.name for f in full if str(f.type) == "string" and f.name not in plain]
    split = {"action_logprobs.list.element": "BYTE_STREAM_SPLIT"} if "action_logprobs" in full.names else None
    options = {"use_dictionary": packed, "column_encoding": split, "write_page_checksum": True, "write_page_index": True}
    with pq.ParquetWriter(temporary, full, compression="zstd", compression_level=3, **options) as writer:
        for table in tables:
            writer.write_table(table.cast(full), row_group_size=ROW_GROUP)
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: pathlib.Path, dataset: str):
    """The table and its metadata; columns of older files that are missing are null. Raises ValueError for newer or foreign files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path, page_checksum_verification=True).read()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path}: got {str(error).splitlines()[0]}, wanted a whole Parquet file") from error
    metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    version = metadata.get("schema_version")
    if version is None or not version.isdigit() or int(version) > SCHEMA_VERSION:
        raise ValueError(f"{path}: got schema_version {version}, wanted {SCHEMA_VERSION} or older")
    wanted = schema(dataset)
    columns = [table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type) for f in wanted]
    return pa.table(columns, schema=wanted), metadata


# ---------------------------------------------------------------------------------------------- tasks


def write_tasks(path: str | os.PathLike, tasks: Iterable[Task]) -> None:
    """One Parquet file with a row a task, written whole or not at all. Raises ValueError when two tasks have the same id."""
    import pyarrow as pa

    rows = [_task_row(task) for task in tasks]
    ids = [row["id"] for row in rows]
    if len(set(ids)) < len(ids):
        raise ValueError(f"tasks: got {len(ids) - len(set(ids))} repeated ids, wanted each task once")
    _write(pathlib.Path(path), [pa.Table.from_pylist(rows, schema=schema("tasks"))], "tasks", {})


def read_tasks(path: str | os.PathLike, split: str | None = None) -> list[Task]:
    """The tasks of `path` in the order written, all or those of one split."""
    table, _ = _read(pathlib.Path(path), "tasks")
    return [_task(row) for row in table.to_pylist() if split in (None, row["split"])]


def _task_row(task: Task) -> dict[str, Any]:
    plain = task.to_dict()
    baselines = plain.pop("baselines") or {}
    environment = json.dumps(baselines["environment"]) if baselines else None
    return plain | {"eager_ms": baselines.get("eager_ms"), "compile_ms": baselines.get("compile_ms"), "environment": environment}


def _task(row: dict[str, Any]) -> Task:
    eager, compiled, environment = (row.pop(name) for name in ("eager_ms", "compile_ms", "environment"))
    baselines = None
    if environment is not None:
        baselines = Baselines(eager_ms=eager, compile_ms=compiled, environment=json.loads(environment)).to_dict()
    return Task.from_dict(row | {"baselines": baselines})


# --------------------------------------------------------------------------------------- trajectories


def _verdict_columns(verdict: Verdict | None, candidate: Candidate | None) -> dict[str, Any]:
    """Flat columns that queries ask for, beside the whole records as JSON."""
    row: dict[str, Any] = {}
    if candidate is not None:
        row |= {"candidate_id": candidate.id, "candidate": json.dumps(candidate.to_dict())}
    if verdict is None:
        return row
    row |= {
        name: getattr(verdict, name) for name in ("reason", "rule", "backend", "policy", "own_kernel_share", "speed_of_light", "correct")
    }
    row |= {"status": str(verdict.status), "flags": list(verdict.flags), "verdict": json.dumps(verdict.to_dict())}
    row |= {f"{name}_ms": (verdict.times_ms or {}).get(name) for name in ("candidate", "eager", "compile")}
    for base in ("eager", "compile"):
        interval = (verdict.speedup or {}).get(base) or (None, None, None)
        row |= {f"speedup_{base}_{end}": value for end, value in zip(("low", "median", "high"), interval, strict=True)}
    return row


def _turn_row(trajectory: Trajectory, turn: Turn) -> dict[str, Any]:
    return {
        "trajectory": trajectory.id,
        "turn": turn.index,
        "turn_id": trajectory.turn_id(turn.index),
        **{name: getattr(trajectory, name) for name in ("task", "checkpoint", "stage", "sample")},
        "text": turn.text,
        "observation": turn.observation,
        "tools": [call.tool for call in turn.tool_calls],
        "tool_calls": json.dumps([call.to_dict() for call in turn.tool_calls]),
        "n_prompt": len(turn.prompt_ids),
        "n_action": len(turn.action_ids),
        "n_obs": len(turn.observation_ids),
        "finish_reason": turn.finish_reason,
        "policy_version": turn.policy_version,
        "trainable": turn.trainable,
        **{f"{part}_s": turn.seconds.get(part) for part in ("generate", "tools", "judge")},
        "seconds": json.dumps(turn.seconds),
        **_verdict_columns(turn.verdict, turn.candidate),
        "prompt_ids": turn.prompt_ids,
        "action_ids": turn.action_ids,
        "action_logprobs": turn.action_logprobs,
        "observation_ids": turn.observation_ids,
    }


def _episode_row(trajectory: Trajectory) -> dict[str, Any]:
    turns = trajectory.turns
    return {
        "trajectory": trajectory.id,
        **{name: getattr(trajectory, name) for name in ("task", "checkpoint", "stage", "sample", "stop", "reward", "error")},
        "n_turns": len(turns),
        "first_correct_turn": next((t.index for t in turns if t.verdict and t.verdict.correct), None),
        "n_prompt": sum(len(t.prompt_ids) for t in turns),
        "n_action": sum(len(t.action_ids) for t in turns),
        "n_obs": sum(len(t.observation_ids) for t in turns),
        **{f"{part}_s": sum(t.seconds.get(part, 0.0) for t in turns) for part in ("generate", "tools", "judge")},
        **_verdict_columns(trajectory.verdict, trajectory.candidate),
    }


def _loaded(record: type, text: str | None):
    return None if text is None else record.from_dict(json.loads(text))


def _turn(row: dict[str, Any], tokens: dict[str, Any]) -> Turn:
    logprobs = tokens["action_logprobs"]
    return Turn(
        index=row["turn"],
        prompt_ids=tuple(tokens["prompt_ids"]),
        action_ids=tuple(tokens["action_ids"]),
        action_logprobs=None if logprobs is None else tuple(logprobs),
        observation_ids=tuple(tokens["observation_ids"]),
        tool_calls=tuple(ToolCall.from_dict(call) for call in json.loads(row["tool_calls"])),
        candidate=_loaded(Candidate, row["candidate"]),
        verdict=_loaded(Verdict, row["verdict"]),
        seconds=json.loads(row["seconds"]),
        **{name: row[name] for name in ("text", "observation", "policy_version", "finish_reason", "trainable")},
    )


def _trajectory(row: dict[str, Any], turns: list[Turn], round: int) -> Trajectory:
    return Trajectory(
        round=round,
        turns=tuple(sorted(turns, key=lambda turn: turn.index)),
        candidate=_loaded(Candidate, row["candidate"]),
        verdict=_loaded(Verdict, row["verdict"]),
        **{name: row[name] for name in ("task", "checkpoint", "stage", "sample", "stop", "reward", "error")},
    )


class TrajectoryStore:
    """The trajectories of one stage in one round, while it runs.

    Example: store = TrajectoryStore("work/rollout/live", 1); store.add(trajectory); store.publish("artifacts/trajectories/r01")
    """

    def __init__(self, folder: str | os.PathLike, round: int):
        if not isinstance(round, int) or round < 0:
            raise ValueError(f"round: got {round!r}, wanted 0, 1, 2, ...")
        self.folder = pathlib.Path(folder) / f"round={round}"
        self.round = round
        self._whole: dict[pathlib.Path, tuple[int, int]] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob("*.tmp-*"):
            if not _alive(int(left.name.rpartition("-")[2])):
                left.unlink(missing_ok=True)

    def add(self, trajectory: Trajectory) -> None:
        """Write the trajectory as one shard named by its id; the same id overwrites. On disk when it returns."""
        import pyarrow as pa

        if trajectory.round != self.round:
            raise ValueError(f"trajectory: got round {trajectory.round}, wanted {self.round}")
        table = pa.Table.from_pylist([_turn_row(trajectory, turn) for turn in trajectory.turns], schema=schema("shard"))
        metadata = {"round": str(self.round), "episode": json.dumps(_episode_row(trajectory))}
        _write(self.folder / f"{trajectory.id}.parquet", [table], "shard", metadata)

    def finished(self) -> set[str]:
        """Ids of the trajectories that are whole on disk. Broken shards are deleted and logged, so that they are played again."""
        return {path.stem for path, _, _ in self._shards(keep=False)}

    def _shards(self, *, keep: bool = True) -> Iterator[tuple[pathlib.Path, Any, dict[str, Any]]]:
        """(path, table, episode row) of every whole shard in order of name; without `keep`, seen shards come without contents."""
        for path in sorted(self.folder.glob("*.parquet")):
            stat = path.stat()
            if not keep and self._whole.get(path) == (stat.st_mtime_ns, stat.st_size):
                yield path, None, {}
                continue
            try:
                table, metadata = _read(path, "shard")
                episode = json.loads(metadata["episode"])
                if episode["trajectory"] != path.stem or episode["n_turns"] != len(table):
                    raise ValueError(
                        f"{path}: got {len(table)} turns of {episode['trajectory']}, wanted {episode['n_turns']} of {path.stem}"
                    )
            except (ValueError, KeyError) as error:
                log.warning("dropped a broken shard, its trajectory will be played again: %s: %s", path.name, error)
                path.unlink()
                continue
            self._whole[path] = (stat.st_mtime_ns, stat.st_size)
            yield path, table, episode

    def publish(self, to: str | os.PathLike) -> int:
        """Compact all shards into `to`/turns, tokens, episodes; `to` appears by one rename. Returns the number of trajectories.

        An existing `to` is replaced. The shards stay; removing the work folder is the stage's business.
        """
        to = pathlib.Path(to)
        building = to.with_name(f"{to.name}.tmp-{os.getpid()}")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        written = sum(self._part(building, number, batch) for number, batch in enumerate(self._batches()))
        if not written:
            self._part(building, 0, [])
        if to.exists():
            old = to.with_name(f"{to.name}.old-{os.getpid()}")
            os.replace(to, old)
            os.replace(building, to)
            shutil.rmtree(old)
        else:
            os.replace(building, to)
        _sync(to.parent)
        return written

    def _batches(self) -> Iterator[list[tuple[Any, dict[str, Any]]]]:
        batch: list[tuple[Any, dict[str, Any]]] = []
        size = 0
        for _, table, episode in self._shards():
            if batch and size + table.nbytes > PART_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((table, episode))
            size += table.nbytes
        if batch:
            yield batch

    def _part(self, building: pathlib.Path, number: int, batch: list[tuple[Any, dict[str, Any]]]) -> int:
        import pyarrow as pa

        batch = sorted(batch, key=lambda pair: (pair[1]["task"], pair[1]["sample"], pair[1]["trajectory"]))
        tables = [table for table, _ in batch]
        whole = pa.concat_tables(tables) if tables else schema("shard").empty_table()
        episodes = pa.Table.from_pylist([episode for _, episode in batch], schema=schema("episodes"))
        parts = {"turns": whole.select(schema("turns").names), "tokens": whole.select(schema("tokens").names), "episodes": episodes}
        for dataset, table in parts.items():
            path = building / dataset / f"round={self.round}" / f"part-{number:03d}.parquet"
            _write(path, [table], dataset, {"round": str(self.round)})
        return len(batch)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def stream_trajectories(folder: str | os.PathLike) -> Iterator[Trajectory]:
    """The trajectories under a published folder one by one, part by part, so that memory holds one part.

    Raises ValueError when `folder` holds no published trajectories or a part is broken.
    """
    folder = pathlib.Path(folder)
    parts = sorted(folder.glob("episodes/round=*/part-*.parquet"), key=lambda p: (int(p.parent.name.partition("=")[2]), p.name))
    if not parts:
        raise ValueError(f"trajectories: got {folder}, wanted a folder with episodes/round=N/part-000.parquet")
    for part in parts:
        round = int(re.fullmatch(r"round=(\d+)", part.parent.name)[1])
        inside = f"{part.parent.name}/{part.name}"
        rows = {name: _read(folder / name / inside, name)[0] for name in DATASETS}
        turns: dict[str, list[Turn]] = {}
        tokens = {(t["trajectory"], t["turn"]): t for t in rows["tokens"].to_pylist()}
        for row in rows["turns"].to_pylist():
            turns.setdefault(row["trajectory"], []).append(_turn(row, tokens[row["trajectory"], row["turn"]]))
        for row in rows["episodes"].to_pylist():
            yield _trajectory(row, turns.get(row["trajectory"], []), round)


def read_trajectories(folder: str | os.PathLike) -> list[Trajectory]:
    """All trajectories under a published folder, complete; log-probs as float32 rounds them."""
    return list(stream_trajectories(folder))
