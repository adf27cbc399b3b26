"""What the measuring programs share: their time, their lines on disk, their figures, the facts of the machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from data.journal import append_lines, read_lines
from data.records import BACKENDS, Baselines, SandboxError, Task
from sandbox.backends import Limits, Measurement
from sandbox.pool import Pool

HEADER = "header"


def parser(name: str, description: str, *, seconds: float = 300.0) -> argparse.ArgumentParser:
    """Options that every program has."""
    made = argparse.ArgumentParser(prog=f"python -m sandbox.study.{name}", description=description)
    made.add_argument("--out", required=True, metavar="FOLDER", help="where lines and figures go; the same folder again goes on")
    made.add_argument("--seconds", type=float, default=seconds, help="end after about so long and write what is known (default %(default)g)")
    made.add_argument("--backend", choices=BACKENDS, default="cpp")
    made.add_argument("--slots", type=int, default=None, help="most slots to take (default: all that are free)")
    made.add_argument("--commit", default=None, help="commit to record where this is no git checkout")
    made.set_defaults(name=name)
    return made


class Study:
    """One run of a program.

    `rows`: key -> line, those of earlier runs included. `left()`: seconds until it has to end (SIGTERM and SIGINT make that now).
    """

    def __init__(self, options: argparse.Namespace, *, setting: dict[str, Any]):
        """`setting`: what must not change between the runs that one file of lines holds. Raises ValueError where it has."""
        self.options, self.name = options, options.name
        self.folder = pathlib.Path(options.out)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"--out: got the file {self.folder}, wanted a folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lines = self.folder / f"{self.name}.jsonl"
        self.end = time.monotonic() + options.seconds
        self.commit = options.commit or commit_here()
        self.machine = machine(options.backend)
        self.rows: dict[str, dict] = {row["key"]: row for row in read_lines(self.lines)}
        header = {"key": HEADER, "machine": self.machine, "commit": self.commit, "setting": setting}
        known = self.rows.setdefault(HEADER, header)
        for field in ("machine", "commit", "setting"):
            if known[field] != header[field]:
                raise ValueError(f"{self.lines}: got lines of another {field} ({known[field]}), wanted {header[field]}, or a new --out")
        if not self.lines.exists():
            append_lines(self.lines, [header], sync=True)

    def left(self) -> float:
        return self.end - time.monotonic()

    def stop(self, *_: Any) -> None:
        self.end = time.monotonic()

    def has(self, key: str) -> bool:
        return key in self.rows

    def add(self, key: str, **row: Any) -> dict:
        """One line, on disk when this returns."""
        row = {"key": key} | row
        append_lines(self.lines, [row], sync=True)
        self.rows[key] = row
        return row

    def of(self, kind: str) -> list[dict]:
        """Lines whose key starts with `kind` and a slash."""
        return [row for key, row in self.rows.items() if key.startswith(kind + "/")]

    def command(self) -> str:
        words = [w for w in sys.argv[1:] if w]
        return shlex.join(["python", "-m", f"sandbox.study.{self.name}", *words])

    def publish(self, figures: Iterable[dict], *, complete: bool) -> list[dict]:
        """FOLDER/NAME.json: every figure with target, command, machine, commit. Replaced whole."""
        fixed = {"command": self.command(), "machine": self.machine, "commit": self.commit, "complete": complete}
        found = [figure | fixed for figure in figures]
        path = self.folder / f"{self.name}.json"
        new = path.with_suffix(".json.new")
        new.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        os.replace(new, path)
        return found

    def pool(self, *, limits: Limits, policy: str = "libraries_allowed", slots: int | None = None) -> Pool:
        return Pool(backend=self.options.backend, policy=policy, limits=limits, slots=slots or self.options.slots)

    async def with_baselines(self, pool: Pool, task: Task) -> tuple[Task | None, dict]:
        """The task with its baselines, measured now or by an earlier run into FOLDER/baselines.jsonl; None with the reason where it is invalid."""
        path = self.folder / f"baselines-{self.options.backend}.jsonl"
        known = {row["key"]: row for row in read_lines(path)}
        row = known.get(task.id)
        if row is None or row["machine"] != self.machine:
            begin = time.monotonic()
            measured = await pool.measure(task)
            row = {"key": task.id, "origin": task.origin, "machine": self.machine, "seconds": round(time.monotonic() - begin, 3), "measurement": measured.to_dict()}
            append_lines(path, [row], sync=True)
        measured = Measurement.from_dict(row["measurement"])
        if measured.invalid is not None or measured.eager_ms is None:
            return None, row
        baselines = Baselines(eager_ms=measured.eager_ms, compile_ms=measured.compile_ms, environment=measured.environment)
        return Task.from_dict(task.to_dict() | {"baselines": baselines.to_dict()}), row


def figure(name: str, value: Any, target: str | None, met: bool | None, **more: Any) -> dict:
    """`met` is None where there is no target, or where too little is known to say."""
    return {"figure": name, "value": value, "target": target, "met": met} | more


def start(study_of: Callable[[argparse.Namespace], Study], work: Callable[[Study], Awaitable[tuple[list[dict], bool]]], options: argparse.Namespace) -> int:
    """Run a program: 0 when figures were written (also those of a cut run), 2 for what the user can mend, 3 when the sandbox failed.

    `work` returns (figures, complete).
    """
    try:
        study = study_of(options)
        signal.signal(signal.SIGTERM, study.stop)
        figures, complete = asyncio.run(work(study))
    except ValueError as error:
        print(f"sandbox.study.{options.name}: {error}", file=sys.stderr)
        return 2
    except SandboxError as error:
        print(f"sandbox.study.{options.name}: the sandbox failed: {error}", file=sys.stderr)
        return 3
    for found in study.publish(figures, complete=complete):
        verdict = {True: "met", False: "NOT MET", None: ""}[found["met"]]
        print(f"{found['figure']}: {found['value']}" + (f"  (wanted {found['target']}) {verdict}" if found["target"] else ""))
    print("complete" if complete else f"cut by --seconds {options.seconds:g}: the same command goes on from here", flush=True)
    return 0


def commit_here() -> str:
    """Commit of the code that runs, with "+" where tracked files differ from it; "unknown" outside a checkout."""
    root = pathlib.Path(__file__).resolve().parents[2]
    if not shutil.which("git"):
        return "unknown"

    def git(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)

    head = git("rev-parse", "--short=12", "HEAD")
    if head.returncode != 0:
        return "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "data", "sandbox").stdout.strip()
    return head.stdout.strip() + ("+" if changed else "")


def machine(backend: str) -> dict[str, Any]:
    """Processor, cores, memory, versions; with backend cuda also GPU and driver. The same from run to run."""
    from importlib.metadata import version

    from sandbox.cpp import cpu_model

    memory = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    facts = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20) if memory else None,
        "python": platform.python_version(),
        "torch": version("torch"),
    }
    if backend == "cuda":
        if not shutil.which("nvidia-smi"):
            raise ValueError("nvidia-smi: not found on PATH, wanted an NVIDIA GPU and its driver (or --backend cpp)")
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        facts["gpu"] = listed.stdout.strip().splitlines() or [listed.stderr.strip()]
    return facts


def quantile(values: list[float], share: float) -> float | None:
    """The value below which `share` of them lie; None for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def geometric_mean(values: list[float]) -> float | None:
    import math

    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
