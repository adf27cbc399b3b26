"""The task set as one Parquet file with a card, so that someone without a GPU can start: `python -m data.release SELECTED --out FOLDER`."""

from __future__ import annotations

import collections
import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from data.families import family_of
from data.journal import read_lines
from data.records import BACKENDS, Baselines, Task
from data.trace import trace

log = logging.getLogger(__name__)

MOST_BYTES = 4 << 20
"""The file is kept in git: no larger than this."""
COLUMNS: dict[str, str] = {
    "id": "hash of source, mode and precision",
    "source": "a Python file with Model(nn.Module), get_inputs() and get_init_inputs()",
    "origin": "synthetic",
    "operators": "the traced aten operators in order: the operator signature",
    "family": "of the costliest of them",
    "regime": "name of the shape regime",
    "shapes": "of the inputs, for example 4096x1024",
    "mode": "eval or train",
    "precision": "fp32, bf16 or fp16",
    "backend": "cuda, or cpp for the CPU-sized twin",
    "split": "train, validation or test",
    "eager_ms": "time of one eager call on the machine of `environment`, milliseconds",
    "compile_ms": "the same under torch.compile; empty where it fails or was not measured",
    "floor_ms": "least time for the bytes that the output depends on",
    "attainable_ms": "best time known for the task; empty where none is",
    "controls": "JSON: the preflight's controls that a kernel without work was tried on, and whether each was seen through",
    "environment": "JSON: the machine that was measured on; empty where nothing was",
}
"""What each column holds, as the card says it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A task of the set with what is known of it beside the record."""

    task: Task
    backend: str
    attainable_ms: float | None = None
    controls: Mapping[str, bool] | None = None

    def __post_init__(self):
        if self.backend not in BACKENDS:
            raise ValueError(f"backend: got {self.backend!r}, wanted {' or '.join(BACKENDS)}")


def write_release(folder: str | os.PathLike, entries: Sequence[Entry], *, how: str, most_bytes: int = MOST_BYTES) -> pathlib.Path:
    """tasks.parquet and README.md in `folder`, both complete or not there; `how` says in the card how the set was made.

    Raises ValueError where two tasks have one id, a label is not what the code does, or the file is larger than `most_bytes`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    repeated = [i for i, times in collections.Counter(e.task.id for e in entries).items() if times > 1]
    if repeated:
        raise ValueError(f"tasks: got {len(repeated)} ids twice, the first {repeated[0]}, wanted each task once")
    rows = [_row(entry) for entry in entries]
    kinds = {"operators": pa.list_(pa.string()), "shapes": pa.list_(pa.string())}
    numbers = {name: pa.float32() for name in COLUMNS if name.endswith("_ms")}
    schema = pa.schema([(name, (kinds | numbers).get(name, pa.string())) for name in COLUMNS])
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tasks.parquet"
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    # Rows of a family together compress far better.
    rows.sort(key=lambda row: (row["backend"], row["family"], row["operators"], row["id"]))
    packed = [name for name in COLUMNS if name not in ("id", "source")]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary, compression="zstd", compression_level=19, use_dictionary=packed)
    size = temporary.stat().st_size
    if size > most_bytes:
        temporary.unlink()
        raise ValueError(f"{path}: got {size} bytes for {len(rows)} tasks, wanted at most {most_bytes}")
    os.replace(temporary, path)
    (folder / "README.md").write_text(card(rows, size, how), encoding="utf-8")
    return path


def _row(entry: Entry) -> dict[str, Any]:
    task = entry.task
    graph = trace(task.source, task.mode)
    if graph.operators != task.operators:
        raise ValueError(f"task {task.id}: got the label {task.operators}, wanted {graph.operators}, which its code does")
    row = {name: getattr(task, name) for name in ("id", "source", "origin", "mode", "precision", "split", "regime", "floor_ms")}
    row |= {"operators": list(task.operators), "family": family_of(task.operators), "backend": entry.backend}
    row["shapes"] = ["x".join(map(str, node.shape)) for node in graph.inputs]
    row |= {"eager_ms": None, "compile_ms": None, "environment": None, "attainable_ms": entry.attainable_ms}
    row["controls"] = None if entry.controls is None else json.dumps(dict(entry.controls), sort_keys=True)
    if task.baselines is not None:
        environment = json.dumps(task.baselines.environment, sort_keys=True)
        row |= {"eager_ms": task.baselines.eager_ms, "compile_ms": task.baselines.compile_ms, "environment": environment}
    return row


def read_release(path: str | os.PathLike, *, backend: str | None = None, split: str | None = None) -> list[Task]:
    """Tasks of a released file, those of `backend` and `split` only where given. Raises ValueError for a file without its columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: got {str(error).partition(chr(10))[0]}, wanted a Parquet file") from error
    missing = [name for name in COLUMNS if rows and name not in rows[0]]
    if missing:
        raise ValueError(f"{path}: got no column {missing[0]}, wanted {', '.join(COLUMNS)}")
    return [_task(row) for row in rows if row["backend"] == (backend or row["backend"]) and row["split"] == (split or row["split"])]


def _task(row: dict[str, Any]) -> Task:
    baselines = None
    if row["eager_ms"] is not None:
        baselines = Baselines(eager_ms=row["eager_ms"], compile_ms=row["compile_ms"], environment=json.loads(row["environment"]))
    plain = {name: row[name] for name in ("source", "origin", "mode", "precision", "split", "regime", "floor_ms")}
    return Task(operators=tuple(row["operators"]), baselines=baselines, **plain)


def card(rows: Sequence[Mapping[str, Any]], size: int, how: str) -> str:
    """The set's card: licence, how it was made, what the columns hold, and counts of what is in it."""
    measured = sum(row["eager_ms"] is not None for row in rows)
    checked = sum(row["controls"] is not None for row in rows)
    lines = [
        "# Tasks",
        "",
        f"{len(rows)} PyTorch modules to write faster kernels for, in one Parquet file of {size} bytes. Apache-2.0.",
        "",
    ]
    lines += [
        f"Made by {how}. Every operator signature is traced, not declared; {measured} tasks are measured, and of {checked} the outcome"
    ]
    lines += ["of the preflight's controls is known. No two tasks have the same traced graph.", ""]
    lines += ["| column | holds |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in COLUMNS.items()), ""]
    for name in ("backend", "split", "precision", "family", "regime"):
        counts = collections.Counter(str(row[name]) for row in rows)
        lines += [f"| {name} | tasks |", "| --- | --- |", *(f"| {value} | {times} |" for value, times in counts.most_common()), ""]
    lengths = collections.Counter(len(row["operators"]) for row in rows)
    lines += ["| traced operators | tasks |", "| --- | --- |", *(f"| {length} | {lengths[length]} |" for length in sorted(lengths)), ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m data.release SELECTED [--twin SELECTED] --out FOLDER`: the selected tasks, and those of the CPU, as one Parquet file."""
    import argparse
    import sys

    from data.store import read_tasks

    parser = argparse.ArgumentParser(prog="python -m data.release", description=main.__doc__)
    parser.add_argument("selected", help="tasks.parquet that the stage select wrote, on a GPU")
    parser.add_argument("--twin", help="the same, of the CPU backend")
    parser.add_argument("--measured", action="append", default=[], help="measured.jsonl of the stage select, for the controls")
    parser.add_argument(
        "--how", default="`python -m stages.synthesize` and `python -m stages.select`", help="how the set was made, for the card"
    )
    parser.add_argument("--out", required=True, help="folder for tasks.parquet and README.md")
    given = parser.parse_args(arguments)
    try:
        controls = {r["task"]: r["measurement"]["controls"] for path in given.measured for r in read_lines(path) if r.get("measurement")}
        files = [("cuda", given.selected), *([("cpp", given.twin)] if given.twin else [])]
        entries = [Entry(task=t, backend=name, controls=controls.get(t.id)) for name, path in files for t in read_tasks(path)]
        path = write_release(given.out, entries, how=given.how)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(entries)} tasks, {path.stat().st_size} bytes: {path}")
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main())
