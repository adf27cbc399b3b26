"""What has run and what came out of it: the table that ends `make run`. Reads files only, so it also answers while a stage runs."""

from __future__ import annotations

import argparse
import json
import pathlib
import time

from data.journal import read_lines
from stages import plan, stage, track


def rows(root: pathlib.Path) -> list[tuple[str, str, str]]:
    """(stage, seconds or state, what came out) in the order of the DAG."""
    found = []
    for node in plan.read(root).values():
        metrics = next((root / path for path in node.outs if path.startswith("artifacts/metrics/")), None)
        published = all((root / path).exists() for path in node.outs)
        if published and metrics:
            body = json.loads(metrics.read_text(encoding="utf-8"))
            found.append((node.name, f"{body['seconds']:.0f}", body.get("headline", "")))
            continue
        if published:
            found.append((node.name, "done", ", ".join(node.outs)))
            continue
        events = read_lines(root / "work" / stage.folder_name(node.name) / "events.jsonl")
        last = events[-1] if events else None
        age = f", {time.time() - last['time']:.0f} s ago" if last else ""
        found.append((node.name, "-", f"at {last['done']}/{last['total']} {last['text']}{age}" if last else "not run"))
    return found


def main() -> None:
    """Print the table and where to look."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    root = pathlib.Path(".")
    table = [("stage", "seconds", "what came out"), *rows(root)]
    widths = [max(len(row[column]) for row in table) for column in (0, 1)]
    for name, seconds, text in table:
        print(f"{name:{widths[0]}}  {seconds:>{widths[1]}}  {text}")
    total = sum(float(row[1]) for row in table[1:] if row[1].replace(".", "").isdigit())
    print(f"{'all':{widths[0]}}  {total:>{widths[1]}.0f}\n")
    print(f"report        {root / 'artifacts/report/index.html'}")
    print(f"trajectories  {root / 'artifacts/trajectories'}   (python -m data.sql --help)")
    print(f"MLflow store  {track.registry.default_uri(root)}   (make ui)")


if __name__ == "__main__":
    main()
