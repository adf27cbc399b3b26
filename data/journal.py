"""JSON lines on disk, as progress, learning curves and the tracking journal are kept."""

from __future__ import annotations

import json
import pathlib
from typing import Any


def read_lines(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """JSON lines; a last line cut by a kill is left out."""
    path, rows = pathlib.Path(path), []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
