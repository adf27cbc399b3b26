"""JSON lines on disk, as progress, learning curves and the tracking journal are kept."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any


def read_lines(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """JSON lines; a line cut by a kill is left out."""
    path, rows = pathlib.Path(path), []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def append_lines(path: str | pathlib.Path, rows: Iterable[dict[str, Any]], *, sync: bool = False) -> None:
    """Add the rows at the end, on a new line where a kill cut the last one. `sync`: on disk when this returns."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("a+b") as lines:
        if lines.seek(0, os.SEEK_END):
            lines.seek(-1, os.SEEK_END)
            # Joined to a cut line, the first new row would be lost with it.
            text = text if lines.read() == b"\n" else "\n" + text
        lines.write(text.encode("utf-8"))
        if sync:
            lines.flush()
            os.fsync(lines.fileno())
