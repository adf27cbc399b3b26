"""Trajectories and tasks in SQL: `python -m data.sql pass_rate`, or any SELECT over turns, tokens, episodes, tasks.

Further views: `scored` (episodes that count: the judge or the machine did not fail, the task was valid) and `verdicts` (every judgement:
of a turn, or the final one). Each row's `run` is the folder that was published, such as evaluate-r01.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

QUERIES = pathlib.Path(__file__).parent / "queries"
TYPES = {"string": "VARCHAR", "double": "DOUBLE", "float": "FLOAT", "bool": "BOOLEAN", "int32": "INTEGER"}
SCORED = """
create view scored as
select * replace (coalesce(correct, false) as correct, coalesce(status, 'no_candidate') as status)
from episodes where stop <> 'infra_error' and status is distinct from 'task_invalid'
"""
VERDICTS = """
create view verdicts as
select 'turn' as kind, * from (select run, round, stage, checkpoint, task, sample, trajectory, turn, {columns} from turns)
where status is not null
union all by name
select 'final' as kind, * from (select run, round, stage, checkpoint, task, sample, trajectory, {columns} from episodes)
where status is not null
"""
PASS_AT_K = """
create macro pass_at_k(n, c, k) as
case when c = 0 then 0.0 when n - c < k then 1.0
else 1.0 - list_aggregate([1.0 - k::double / i for i in range(n - c + 1, n + 1)], 'product') end
"""


def queries() -> dict[str, str]:
    """What each named query answers: the first line of its file."""
    return {path.stem: path.read_text().splitlines()[0].lstrip("- ") for path in sorted(QUERIES.glob("*.sql"))}


def connect(root: str | pathlib.Path = "artifacts"):
    """A DuckDB connection in memory with the views over every published file under `root`; views over nothing are empty, with their types.

    Files without a whole header and footer are left out and named on stderr.
    """
    import duckdb

    from data.store import DATASETS, schema, verdict_columns

    connection = duckdb.connect()
    root = pathlib.Path(root)
    for dataset in DATASETS:
        files = _whole(sorted(root.glob(f"**/{dataset}/round=*/part-*.parquet")))
        run = f"regexp_extract(filename, '([^/]+)/{dataset}/round=[0-9]+/[^/]+$', 1)"
        _view(connection, dataset, schema(dataset), files, {"run": (run, "VARCHAR"), "round": ("round", "INTEGER")})
    files = _whole(sorted(root.glob("**/tasks/**/*.parquet")) or sorted(root.glob("tasks*.parquet")))
    _view(connection, "all_tasks", schema("tasks"), files, {"file": ("filename", "VARCHAR")})
    # the same task may lie in several sets, raw and selected: one row each, the measured one first
    connection.execute(
        "create view tasks as select * exclude (file) from all_tasks "
        "qualify row_number() over (partition by id order by eager_ms is null, split is null, file desc) = 1"
    )
    connection.execute(SCORED)
    connection.execute(VERDICTS.format(columns=", ".join(verdict_columns())))
    connection.execute(PASS_AT_K)
    return connection


def _whole(files: list[pathlib.Path]) -> list[pathlib.Path]:
    whole = []
    for path in files:
        if any(".tmp-" in part or ".old-" in part for part in path.parts):
            continue
        with open(path, "rb") as file:
            head = file.read(4)
            file.seek(max(0, path.stat().st_size - 4))
            good = head == file.read(4) == b"PAR1" and path.stat().st_size > 12
        if good:
            whole.append(path)
        else:
            print(f"left out {path}: no whole Parquet file", file=sys.stderr)
    return whole


def _type(kind: Any) -> str:
    text = str(kind)
    return TYPES[str(kind.value_type)] + "[]" if text.startswith("list<") else TYPES[text]


def _view(connection, name: str, schema, files: list[pathlib.Path], extra: dict[str, tuple[str, str]]) -> None:
    """View `name` over `files` with every column of `schema` and `extra` (expression, type): old files and no files answer the same queries."""
    columns = [f'"{field.name}" {_type(field.type)}' for field in schema] + [f'"{key}" {kind}' for key, (_, kind) in extra.items()]
    connection.execute(f"create table empty_{name} ({', '.join(columns)})")
    sql = f"create view {name} as select * from empty_{name}"
    if files:
        listed = ", ".join("'" + str(path.resolve()).replace("'", "''") + "'" for path in files)
        hive = "true, hive_types={'round': 'INTEGER'}" if "round" in extra else "false"
        dropped = "filename, round" if "round" in extra else "filename"
        computed = ", ".join(f"{expression} as {key}" for key, (expression, _) in extra.items())
        source = f"read_parquet([{listed}], union_by_name=true, filename=true, hive_partitioning={hive})"
        sql += f" union all by name select * exclude ({dropped}), {computed} from {source}"
    connection.execute(sql)


def ask(question: str, root: str | pathlib.Path = "artifacts") -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows for a named query or raw SQL. Raises ValueError for an unknown name or SQL that DuckDB refuses."""
    import duckdb

    sql = question
    if len(question.split()) < 2:
        if question not in queries():
            raise ValueError(f"query: got {question!r}, wanted one of {', '.join(queries())}, or SQL")
        sql = (QUERIES / f"{question}.sql").read_text()
    try:
        result = connect(root).execute(sql)
        return [column[0] for column in result.description or ()], result.fetchall()
    except duckdb.Error as error:
        raise ValueError(f"query: got {str(error).splitlines()[0]}, wanted SQL over turns, tokens, episodes, tasks") from error


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(_cell, value)) if isinstance(value, list) else str(value)


def render(columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    """A table; rows that hold texts of several lines stand one below the other instead."""
    cells = [[_cell(value) for value in row] for row in rows]
    if any("\n" in cell for row in cells for cell in row):
        blocks = []
        for row in cells:
            fields = [f"{name}:\n{cell}" if "\n" in cell else f"{name}: {cell}" for name, cell in zip(columns, row, strict=True)]
            blocks.append("\n".join(fields))
        return ("\n" + "-" * 60 + "\n").join(blocks)
    widths = [max(len(line[at]) for line in [columns, *cells]) for at in range(len(columns))]
    numeric = [all(isinstance(row[at], (int, float)) or row[at] is None for row in rows) for at in range(len(columns))]

    def line(row: list[str]) -> str:
        parts = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join([line(columns), line(["-" * w for w in widths]), *map(line, cells)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m data.sql", description="Ask the stored trajectories and tasks.")
    parser.add_argument("query", nargs="?", help="a named query (see --list) or SQL over turns, tokens, episodes, tasks, scored, verdicts")
    parser.add_argument("--root", default="artifacts", help="folder to search for published files (default: artifacts)")
    parser.add_argument("--json", action="store_true", help="rows as a JSON list of objects")
    parser.add_argument("--list", action="store_true", help="the named queries and what they answer")
    arguments = parser.parse_args(argv)
    if arguments.list:
        listed = queries()
        print(json.dumps(listed) if arguments.json else "\n".join(f"{name:<16} {text}" for name, text in listed.items()))
        return 0
    try:
        if arguments.query is None:
            raise ValueError(f"query: got nothing, wanted one of {', '.join(queries())}, or SQL")
        if not pathlib.Path(arguments.root).is_dir():
            print(f"nothing is stored under {arguments.root} yet", file=sys.stderr)
        columns, rows = ask(arguments.query, arguments.root)
    except ValueError as error:
        print(str(error), file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], default=str))
    else:
        print(render(columns, rows))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head` closed our output: nothing left to say
        sys.stderr.close()
        sys.exit(0)
