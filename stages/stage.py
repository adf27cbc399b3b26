"""The guard around every stage: its params, its place to work, its way to stop, to resume and to publish.

A stage module calls `main(__file__, run)`. `run(job)` reads from `job.params` and the paths in dvc.yaml, and writes below
`job.out(path)` and, for what a later start may use, below `job.work`. Then:
- Work lives in work/NAME/DIGEST/, the digest taken over the params and deps that dvc.yaml lists, so a changed input never
  resumes an old run. Outs are published by rename when `run` has returned; a half output is never at its place.
- The same stage never runs twice at once (a lock of the process, which the kernel releases with it).
- SIGTERM (also sent when the parent dies) or ctrl-C raises `Stopped` in `run`; exit code 143, the work stays.
- ValueError and OSError are the user's: one line, exit 2. SandboxError, a full disk or memory are the machine's: one line, exit 3.
Imports neither DVC, Prefect nor MLflow. It does not retry and does not decide what is out of date.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import yaml

from data.journal import append_lines, read_lines
from data.records import SandboxError
from stages import params as parameters
from stages import plan

GRACE_S = 20.0
LOCK_WAIT_S = 60.0
HASHED_BYTES = 64 << 20
"""Larger deps enter the digest by size and time of change."""


class Stopped(SystemExit):
    """SIGTERM came. A SystemExit, so that no handler for errors swallows it and asyncio lets it through at once."""


class Visible:
    """The sections (and keys) that dvc.yaml lists for a stage, and `machine`. Anything else cannot be read."""

    def __init__(self, checked: parameters.Params, listed: tuple[str, ...], stage: str):
        self.__dict__.update(_stage=stage, machine=checked.machine)
        for path in listed:
            section, _, key = path.partition(".")
            record = getattr(checked, section)
            if key and isinstance(record, dict):
                self.__dict__["round"] = record[key]
            elif key:
                self.__dict__.setdefault(section, Visible(checked, (), f"{stage}: {section}")).__dict__[key] = getattr(record, key)
            else:
                self.__dict__[section] = record

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._stage}: dvc.yaml does not list {name} in its params, so it must not be read")


@dataclasses.dataclass(kw_only=True)
class Job:
    """One execution of a stage."""

    name: str
    """rollout@r01."""
    key: str | None
    params: Any
    work: pathlib.Path
    """Kept when the stage is stopped, handed out again to the same inputs."""
    root: pathlib.Path
    summary: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Becomes the metrics file; `headline` is the line in the closing table."""
    _told: float = 0.0

    @property
    def round(self) -> int:
        """Number of the round: 1 of r01; 0 outside the rounds."""
        return int(self.key[1:]) if self.key and self.key[1:].isdigit() else 0

    def out(self, path: str) -> pathlib.Path:
        """Where to write the out `path` of dvc.yaml; its parent exists."""
        place = self.work / "out" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def record(self, **values: Any) -> None:
        """Append one line of numbers to the stage's journal (learning curves, tracking)."""
        append_lines(self.work / "journal.jsonl", [{"time": round(time.time(), 3), **values}])

    def journal(self) -> list[dict[str, Any]]:
        """Every recorded line, a stopped earlier start's included; of a step that a kill made to be taken again, the last."""
        rows = read_lines(self.work / "journal.jsonl")
        last = {(row.get("fit"), row["step"]): number for number, row in enumerate(rows) if "step" in row}
        return [row for number, row in enumerate(rows) if "step" not in row or last[row.get("fit"), row["step"]] == number]

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Tell how far the stage is: an event for whoever watches, a line every few seconds for whoever reads."""
        event = {"time": round(time.time(), 3), "stage": self.name, "done": done, "total": total, "text": text}
        append_lines(self.root / "work" / folder_name(self.name) / "events.jsonl", [event])
        if given := os.environ.get("CUDA_AGENT_EVENTS"):
            # The file of a flow that watches this one run; `stages.status` reads the work folder's.
            append_lines(given, [event])
        if done >= total or time.monotonic() - self._told > 5:
            self._told = time.monotonic()
            print(f"{self.name}: {done}/{total} {text}".rstrip(), flush=True)


def folder_name(name: str) -> str:
    """rollout-r01 for rollout@r01."""
    return name.replace("@", "-")


def main(file: str, run: Callable[[Job], None], *, option: str | None = None) -> None:
    """Run one stage from its command line; `option` ("round", "checkpoint") names the foreach key. Never returns."""
    # Threads that spin long take cores from the judge, threads that never spin make an optimizer step 60 % longer. Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    stage = pathlib.Path(file).stem
    parser = argparse.ArgumentParser(prog=f"python -m stages.{stage}", description=sys.modules["__main__"].__doc__ or stage,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    if option:
        parser.add_argument(f"--{option}", required=True, help="its name in params.yaml, for example r01")
    parser.add_argument("--fresh", action="store_true", help="forget unfinished and finished work of the same inputs")
    arguments = parser.parse_args()
    key = getattr(arguments, option) if option else None
    code = guarded(f"{stage}@{key}" if key else stage, run, fresh=arguments.fresh)
    # Outs are published and pools closed: taking torch and DeepSpeed down in order would cost three seconds a stage
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def guarded(name: str, run: Callable[[Job], None], *, root: str | pathlib.Path = ".", fresh: bool = False) -> int:
    """Run the stage `name` of ROOT/dvc.yaml by `run`. Returns the exit code."""
    root, job = pathlib.Path(root), None
    try:
        _die_with_parent()
        checked, nodes = parameters.load(root / "params.yaml"), plan.read(root)
        if name not in nodes:
            raise ValueError(f"{name}: got no such stage, wanted one of {', '.join(n for n in nodes if n.startswith(name.partition('@')[0])) or 'dvc.yaml'}")
        node = nodes[name]
        for dep in node.deps:
            if not (root / dep).exists():
                maker = next((n.name for n in nodes.values() if dep in n.outs), None)
                raise ValueError(f"{dep}: got nothing there, wanted " + (f"what {maker} makes (dvc repro {maker})" if maker else "that file"))
        home = root / "work" / folder_name(name)
        home.mkdir(parents=True, exist_ok=True)
        lock = _locked(home / ".lock", name)
        work = _work_folder(home, digest(node, root), _lock_entry(root, name), fresh)
        job = Job(name=name, key=node.key, params=Visible(checked, node.params, name), work=work, root=root)
        if not (work / "done.json").exists():
            _finish(job, node, run)
        _publish(node, work / "out", root)
        lock.close()
        return 0
    except Stopped:
        print(f"{name}: stopped; the next start goes on from {job.work if job else 'the beginning'}", file=sys.stderr)
        return 143
    except (ValueError, SandboxError, OSError) as error:
        where = ""
        if job:
            with contextlib.suppress(OSError):  # a full disk must not hide what happened
                (job.work / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
                where = f" (traceback: {job.work / 'error.txt'})"
        print(f"{name}: {' '.join(str(error).split())}{where}", file=sys.stderr)
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
        return 3 if full or isinstance(error, SandboxError) else 2


def _finish(job: Job, node: plan.Node, run: Callable[[Job], None]) -> None:
    clock, started = job.work / "seconds", time.monotonic()
    before = float(clock.read_text()) if clock.exists() else 0.0
    try:
        run(job)
    finally:
        seconds = before + time.monotonic() - started
        clock.write_text(f"{seconds:.3f}")
    metrics = next((path for path in node.outs if path.startswith("artifacts/metrics/")), None)
    if metrics:
        body = {"stage": job.name, "finished": round(time.time(), 3), "seconds": round(seconds, 1), **job.summary, "journal": job.journal()}
        job.out(metrics).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    missing = [path for path in node.outs if not (job.work / "out" / path).exists()]
    assert not missing, f"{job.name}: run wrote no {', '.join(missing)}"
    # Marked as done before it is cleaned: a kill between the two leaves finished work with some litter, not litter without work.
    _write(job.work / "done.json", {"lock": _lock_entry(job.root, job.name), "seconds": round(seconds, 1)})
    for path in list(job.work.iterdir()):
        if path.name not in ("out", "done.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write(path: pathlib.Path, body: dict[str, Any]) -> None:
    temporary = path.with_suffix(f".tmp-{os.getpid()}")
    temporary.write_text(json.dumps(body), encoding="utf-8")
    os.replace(temporary, path)


def _publish(node: plan.Node, staged: pathlib.Path, root: pathlib.Path) -> None:
    """Each out appears whole by one rename; hard links keep the work's copy until DVC has recorded the stage."""
    for path in node.outs:
        place, fresh = root / path, staged.parent / f"publish-{os.getpid()}"
        if (staged / path).is_dir():
            shutil.copytree(staged / path, fresh, copy_function=_link)
        else:
            _link(staged / path, fresh)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            old = staged.parent / f"old-{os.getpid()}"
            os.rename(place, old)
            os.rename(fresh, place)
            shutil.rmtree(old)
        else:
            os.replace(fresh, place)


def _link(source: Any, target: Any) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Some file systems have no hard links.
        shutil.copy2(source, target)


def _work_folder(home: pathlib.Path, name: str, entry: str | None, fresh: bool) -> pathlib.Path:
    """The folder for this digest, every other one of the stage removed."""
    work = home / name
    for other in home.iterdir():
        if other.is_dir() and other != work:
            shutil.rmtree(other)
    done = work / "done.json"
    # DVC recorded the finished work since: this start is a rerun on purpose (dvc repro -f), not the end of a stopped one.
    rerun = done.exists() and entry is not None and json.loads(done.read_text())["lock"] != entry
    if fresh or rerun:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    return work


def _lock_entry(root: pathlib.Path, name: str) -> str | None:
    """Digest of what dvc.lock says of the stage; None when it says nothing."""
    path = root / "dvc.lock"
    if not path.exists():
        return None
    entry = (yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) or {}).get("stages", {}).get(name)
    return entry and hashlib.sha256(json.dumps(entry, sort_keys=True, default=str).encode()).hexdigest()[:16]


def digest(node: plan.Node, root: pathlib.Path) -> str:
    """Sixteen hex digits over the params and deps that dvc.yaml lists for the stage."""
    values = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    ignored = [line.strip().strip("/") for line in (root / ".dvcignore").read_text().splitlines() if line.startswith("/")] if (root / ".dvcignore").exists() else []
    files = sorted({file for dep in node.deps for file in _files(root / dep)})
    parts = [[node.name, node.cmd], [[path, plan._lookup(values, path)] for path in node.params]]
    for file in files:
        relative = file.relative_to(root).as_posix()
        if "__pycache__" in relative or relative.endswith(".pyc") or any(relative == i or relative.startswith(i + "/") for i in ignored):
            continue
        stat = file.stat()
        content = hashlib.sha256(file.read_bytes()).hexdigest() if stat.st_size <= HASHED_BYTES else [stat.st_size, stat.st_mtime_ns]
        parts.append([relative, content])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _locked(path: pathlib.Path, name: str):
    """Hold the stage's lock until exit. A stage that was just told to stop gets time to leave. Raises ValueError when it does not."""
    # A POSIX lock belongs to this process alone: children that outlive us do not keep it.
    file, until = path.open("a+"), time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() > until:
                raise ValueError(f"{path}: got a lock held by another run of {name}, wanted to be the only one") from None
            time.sleep(0.2)


def _die_with_parent() -> None:
    """SIGTERM when the parent dies; on SIGTERM `Stopped` in the main thread, and the end by force after a grace time."""
    parent = os.getppid()
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        raise Stopped(143)


def _stop(number: int, frame: Any) -> None:
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)
    timer = threading.Timer(GRACE_S, os._exit, (143,))
    timer.daemon = True
    timer.start()
    raise Stopped(143)
