"""KernelBench's problems as tasks, read from a local clone (`KernelBench/level1/19_ReLU.py`); nothing of it is part of this project."""

from __future__ import annotations

import ast
import dataclasses
import logging
import os
import pathlib
import re
from collections.abc import Sequence

from data.records import Task
from data.trace import trace

log = logging.getLogger(__name__)

LEVELS = (1, 2, 3)
"""Level 4 needs weights from a model hub and is read only when asked for."""
FINGERPRINTS = pathlib.Path(__file__).with_name("exam.jsonl.gz")
"""Fingerprints of the 250 problems of levels 1 to 3, none of their text (revision 423217d9): `python -m data.kernelbench CLONE` makes it."""
HOW_TO_GET = "git clone https://github.com/ScalingIntelligence/KernelBench, then give the path of that folder"


def load(
    folder: str | os.PathLike, *, levels: Sequence[int] = LEVELS, problems: Sequence[int] | None = None, traced: bool = False
) -> list[Task]:
    """The problems of `levels` in order of level and number, with origin kernelbench/LEVEL/PROBLEM and split test.

    `problems` keeps those numbers only; `traced` fills in `operators` (under a minute for all three levels; empty where the meta device
    cannot run the problem, or a recurrent network unrolls too far). A file that is no Python or no problem is named in the log with its line and left out. Raises ValueError when
    `folder` holds no KernelBench, with what to do.
    """
    root, tasks = _root(folder, levels), []
    for level in levels:
        for number, path in _problems(root / f"level{level}"):
            if problems is not None and number not in problems:
                continue
            try:
                task = Task(source=read_problem(path), origin=f"kernelbench/{level}/{number}", split="test")
            except ValueError as error:
                log.warning("left out: %s", error)
                continue
            tasks.append(_with_operators(task) if traced else task)
    if not tasks:
        raise ValueError(
            f"kernelbench: got no problem of levels {list(levels)} in {folder}, wanted files like level1/19_ReLU.py: {HOW_TO_GET}"
        )
    return tasks


def names(folder: str | os.PathLike, level: int) -> dict[int, str]:
    """Number of each problem of a level to the name of its file, 19_ReLU.py. Raises ValueError as `load`."""
    return {number: path.name for number, path in _problems(_root(folder, (level,)) / f"level{level}")}


def _root(folder: str | os.PathLike, levels: Sequence[int]) -> pathlib.Path:
    folder = pathlib.Path(folder)
    for root in (folder, folder / "KernelBench"):
        if any((root / f"level{level}").is_dir() for level in levels):
            return root
    raise ValueError(f"kernelbench: got {folder} without level{levels[0]}/, wanted a clone of KernelBench: {HOW_TO_GET}")


def _problems(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """(number, file) in order of number; two files of one number are a ValueError."""
    found: dict[int, pathlib.Path] = {}
    for path in sorted(folder.glob("*.py")):
        match = re.match(r"(\d+)_", path.name)
        if match is None:
            continue
        number = int(match[1])
        if number in found:
            raise ValueError(f"kernelbench: got {found[number].name} and {path.name} in {folder}, wanted one file a number")
        found[number] = path
    return sorted(found.items())


def read_problem(path: pathlib.Path) -> str:
    """The source of one problem. Raises ValueError naming the file and the line when it is no Python or no problem."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno}: got {error.msg}, wanted Python") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}:1: got {error}, wanted Python text") from error
    names = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in names]
    if missing:
        raise ValueError(f"{path}:1: got no {', '.join(missing)}, wanted KernelBench's contract")
    return source


def _with_operators(task: Task) -> Task:
    try:
        return dataclasses.replace(task, operators=trace(task.source, task.mode).operators)
    except ValueError as error:
        log.warning("%s: operators unknown: %s", task.origin, error)
        return task


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m data.kernelbench FOLDER FILE`: fingerprints of the problems of a clone, by which tasks are kept away from them."""
    import argparse
    import sys

    from data.selection import fingerprints, write_fingerprints

    parser = argparse.ArgumentParser(prog="python -m data.kernelbench", description=main.__doc__)
    parser.add_argument("folder", help="a clone of KernelBench")
    parser.add_argument("file", nargs="?", default=str(FINGERPRINTS), help="where the fingerprints go (default: %(default)s)")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        found = fingerprints(load(given.folder))
        write_fingerprints(given.file, found)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(found)} problems, {sum(bool(f.operators) for f in found)} traced: {given.file}")
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main())
