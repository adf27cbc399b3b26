"""The pipeline as one Prefect flow, derived from DVC's own graph: when, where and again. It computes nothing and holds no order.

Each stage of dvc.yaml becomes a task that runs `dvc repro --single-item STAGE` in a process group of its own: live log lines, a
progress artifact fed by the stage's event file, the state `Cached` where DVC finds nothing to do, retries from the stage's `meta`.
Cancelling ends the whole group. DVC stays the truth: Prefect caches nothing, and plain `dvc repro` needs none of this.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
# A server started for one run may take longer than the default 20 s on a small machine.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Completed, State

FINAL = (2, 143)
"""Exit codes of a stage that no retry mends: bad input, and told to stop."""
UNCHANGED = re.compile(r"didn't change, skipping|is cached - skipping run")
EXITED = re.compile(r"exited with (-?\d+)")
# The child ends with us even when we are killed; the stage below it watches its own parent.
TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


class StageFailed(RuntimeError):
    """A stage ended with an error; `code` is its exit code where DVC told it."""

    def __init__(self, stage: str, code: int | None, last: str):
        super().__init__(f"{stage}: exit code {code}: {last}")
        self.code = code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    name: str
    needs: tuple[str, ...]
    """Every stage before it, near and far."""
    meta: dict[str, Any]
    clean: bool
    """DVC found nothing to do for it at the start."""


def stages(root: str | pathlib.Path, targets: list[str] | None = None) -> list[Stage]:
    """DVC's stages in an order in which they can run, `targets` (all by default) and what they need."""
    import networkx
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        graph = repo.index.graph
        named = {stage.name: stage for stage in graph}
        for target in targets or ():
            if target not in named:
                raise ValueError(f"targets: got {target!r}, wanted one of {', '.join(sorted(named))}")
        chosen = {named[t] for t in targets or named}
        chosen |= {need for stage in chosen for need in networkx.descendants(graph, stage)}
        # Seen from another folder, DVC writes dvc.yaml's path before the name.
        stale = {name.rpartition(":")[2] for name in repo.status()}
        order = [stage for stage in networkx.dfs_postorder_nodes(graph) if stage in chosen]
        return [
            Stage(
                name=stage.name,
                needs=tuple(need.name for need in networkx.descendants(graph, stage)),
                meta=dict(stage.meta or {}),
                clean=stage.name not in stale,
            )
            for stage in order
        ]


def _worth_again(task_, run, state) -> bool:
    try:
        state.result()
    except StageFailed as error:
        return error.code not in FINAL
    except Exception:  # Prefect asks only whether to try again; the error itself is raised by the task
        return True
    return False


@task(task_run_name="{name}", persist_result=False, cache_policy=NO_CACHE, retry_condition_fn=_worth_again)
def run_stage(name: str, root: str, force: bool, clean: bool) -> State:
    """One stage through DVC. `Cached` when nothing had to run; raises StageFailed."""
    log = get_run_logger()
    if clean and not force:
        log.info("%s didn't change", name)
        return Completed(name="Cached", message="nothing to do")
    with tempfile.TemporaryDirectory(prefix="stage-events-") as folder:
        events = pathlib.Path(folder) / "events.jsonl"
        command = [sys.executable, "-c", TIED, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", name, *(["--force"] if force else [])]
        lines, code = _follow(command, root, events, name)
    if code:
        told = [int(found[1]) for found in map(EXITED.search, lines) if found]
        raise StageFailed(name, told[-1] if told else code, next((line for line in reversed(lines) if line.strip()), ""))
    if any(UNCHANGED.search(line) for line in lines):
        return Completed(name="Cached", message="nothing to do")
    return Completed(message="ran")


def _follow(command: list[str], root: str, events: pathlib.Path, name: str) -> tuple[list[str], int]:
    """Run to the end with live log and progress. Whatever ends this call ends the process group too."""
    log, lines, said = get_run_logger(), [], queue.Queue()
    environment = {**os.environ, "CUDA_AGENT_EVENTS": str(events), "PREFECT__FLOW_RUN_ID": str(flow_run.id or ""), "PYTHONUNBUFFERED": "1",
                   "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    child = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    reader = threading.Thread(target=lambda: [said.put(line.rstrip()) for line in child.stdout], daemon=True)
    reader.start()
    progress = _Progress(events, name)
    try:
        while reader.is_alive() or not said.empty():
            try:
                line = said.get(timeout=1)
                lines.append(line)
                log.info(line)
            except queue.Empty:
                pass
            progress.tell()
        return lines, child.wait()
    finally:
        _end(child)
        progress.tell(last=True)


def _end(child: subprocess.Popen, graces: tuple[float, ...] = (20, 10, 5)) -> None:
    """Stop the group, gently first: stages keep their work on the first signal. Returns when no process of it is left."""
    for number, grace in zip((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), graces, strict=True):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + grace
        while time.monotonic() < until:
            child.poll()
            try:
                os.killpg(child.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)


class _Progress:
    """The events file as a Prefect progress artifact, touched at most every two seconds."""

    def __init__(self, events: pathlib.Path, name: str):
        self.events, self.name, self.key = events, name, re.sub(r"[^a-z0-9]+", "-", name.lower())
        self.artifact, self.seen, self.told = None, 0, 0.0

    def tell(self, last: bool = False) -> None:
        if not self.events.exists() or (time.monotonic() - self.told < 2 and not last):
            return
        rows = self.events.read_text().splitlines()
        if len(rows) == self.seen:
            return
        self.seen, self.told = len(rows), time.monotonic()
        try:
            event = json.loads(rows[-1])
        except json.JSONDecodeError:
            # The line is still being written; the next look finds it whole.
            return
        percent, text = 100.0 * event["done"] / max(1, event["total"]), f"{self.name}: {event['done']}/{event['total']} {event['text']}"
        try:
            if self.artifact is None:
                self.artifact = create_progress_artifact(percent, key=self.key, description=text)
            else:
                update_progress_artifact(self.artifact, percent, description=text)
        except Exception as error:  # a server that is away must not stop a stage
            get_run_logger().warning("progress not shown: %s", type(error).__name__)


@task(persist_result=False, cache_policy=NO_CACHE)
def track(root: str, seconds: float = 120.0) -> None:
    """Ship what was published to MLflow, in a child with a time limit; an outage is a log line, not a failure."""
    try:
        done = subprocess.run([sys.executable, "-m", "stages.track"], cwd=root, capture_output=True, text=True, timeout=seconds)
        get_run_logger().info((done.stdout.strip() or done.stderr.strip())[-500:])
    except subprocess.TimeoutExpired:
        get_run_logger().warning("MLflow took more than %s s; the journal keeps everything", seconds)


@flow(name="pipeline", persist_result=False, log_prints=True)
def pipeline(targets: list[str] | None = None, force: bool = False, root: str = ".", tracking: bool = True) -> dict[str, str]:
    """Bring the pipeline (or TARGETS and what they need) up to date. Returns stage -> Cached or Completed."""
    states: dict[str, str] = {}
    runs: dict[str, Any] = {}
    for stage in stages(root, targets):
        again = run_stage.with_options(retries=int(stage.meta.get("retries", 0)), retry_delay_seconds=5)
        clean = stage.clean and all(states.get(need) == "Cached" for need in stage.needs)
        runs[stage.name] = again.submit(stage.name, root, force, clean, wait_for=[runs[need] for need in stage.needs if need in runs])
        runs[stage.name].wait()
        state = runs[stage.name].state
        if not state.is_completed():
            state.result()
        states[stage.name] = state.name
    if tracking and any(name != "Cached" for name in states.values()):
        track(root)
    return states
