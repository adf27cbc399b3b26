"""The one public door: a task and a candidate in, a verdict out.

    cuda-judge TASK CANDIDATE [--backend cpp|cuda] [--policy libraries_allowed] [--json]     (= python -m sandbox.judge)
    cuda-judge doctor | serve | canary                                                       (each has --help)

Exit 0 when a verdict was reached, whatever it is; 2 for unreadable paths, bad options and missing tools; 3 when we failed.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import pathlib
import sys

from data.records import BACKENDS, POLICIES, PRECISIONS, TRACKS, Candidate, SandboxError, Task, Verdict
from sandbox.backends import Limits, Measurement

__all__ = ["Limits", "Measurement", "candidate_from_path", "judge", "judge_group", "measure", "task_from_path"]
MAX_FILE = 4 << 20
COMMANDS = {"doctor": "sandbox.doctor", "serve": "sandbox.service", "canary": "sandbox.canary"}
"""First words that are no task; a task file of such a name is ./NAME."""


def judge(
    task: Task,
    candidate: Candidate,
    *,
    backend: str = "cpp",
    policy: str = "libraries_allowed",
    precision: str | None = None,
    track: str = "default",
    limits: Limits = Limits(),
) -> Verdict:
    """Judge one candidate on this machine. Candidate code never runs in the calling process. Raises SandboxError."""
    return judge_group(task, [candidate], backend=backend, policy=policy, precision=precision, track=track, limits=limits)[0]


def judge_group(
    task: Task,
    candidates: list[Candidate],
    *,
    backend: str = "cpp",
    policy: str = "libraries_allowed",
    precision: str | None = None,
    track: str = "default",
    limits: Limits = Limits(),
) -> list[Verdict]:
    """Judge candidates of one task, one after another; reference, oracle, questions and baselines are shared. Raises SandboxError."""
    from sandbox import pool

    for value, allowed, name in (
        (backend, BACKENDS, "backend"),
        (policy, POLICIES, "policy"),
        (precision, (None, *PRECISIONS), "precision"),
        (track, TRACKS, "track"),
    ):
        if value not in allowed:
            raise ValueError(f"{name}: got {value!r}, wanted {' or '.join(str(a) for a in allowed)}")
    slot = pool.local_slot(backend, limits)
    return [slot.call("judge", task, limits, candidate=c.to_dict(), policy=policy, precision=precision, track=track) for c in candidates]


def measure(task: Task, *, backend: str = "cpp", limits: Limits = Limits()) -> Measurement:
    """Preflight controls and reference times of a task, no candidate alive. Raises SandboxError."""
    from sandbox import pool

    return pool.local_slot(backend, limits).call("measure", task, limits, precision=None, track="default")


def task_from_path(path: str | pathlib.Path) -> Task:
    """A task file (Model, get_inputs, get_init_inputs; optionally MODE and PRECISION as plain assignments). Raises ValueError."""
    return task_from_source(_read(pathlib.Path(path)))


def task_from_source(source: str) -> Task:
    """A task of this text, its MODE and PRECISION read without running it. Raises ValueError."""
    import ast

    settings = {}
    try:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant):
                settings[node.targets[0].id] = node.value.value
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass  # the judge says task_invalid: that is a verdict, not a wrong path
    mode, precision = settings.get("MODE", "eval"), settings.get("PRECISION", "fp32")
    return Task(source=source, origin="user", mode=mode, precision=precision)


def candidate_from_path(path: str | pathlib.Path) -> Candidate:
    """A file (a workspace with only model_new.py) or a folder. The format follows from what is there. Raises ValueError."""
    path = pathlib.Path(path)
    if path.is_dir():
        found = sorted(
            p
            for p in path.rglob("*")
            if p.is_file() and not p.is_symlink() and not any(part.startswith((".", "__pycache__")) for part in p.relative_to(path).parts)
        )
        files = {
            str(p.relative_to(path)): _read(p)
            for p in found
            if p.suffix in (".py", ".cpp", ".cc", ".cxx", ".cu", ".h", ".hpp", ".cuh", ".inl", ".json")
        }
        if not files:
            raise ValueError(f"{path}: got no source file, wanted model_new.py, plan.json or kernels/")
    else:
        files = {"model_new.py": _read(path)}
    return Candidate(format=format_of(files), files=files)


def format_of(files: dict[str, str]) -> str:
    """plan.json means plan, kernels/ means cuda_extension, else model_new.py decides."""
    if "plan.json" in files:
        return "plan"
    if any(name.startswith("kernels/") for name in files):
        return "cuda_extension"
    text = files.get("model_new.py", "")
    for name, mark in (("triton", "triton.jit"), ("cupy", "cupy"), ("load_inline", "load_inline"), ("load", "cpp_extension")):
        if mark in text:
            return name
    return "load_inline"


def _read(path: pathlib.Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError(f"{path}: got {path.stat().st_size} bytes, wanted at most {MAX_FILE}")
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def describe(verdict: Verdict) -> str:
    """A verdict for people, a few lines."""
    lines = [f"{verdict.status.value}" + (f" [{verdict.rule}]" if verdict.rule else "") + (f": {verdict.reason}" if verdict.reason else "")]
    if verdict.times_ms:
        lines.append("  " + "  ".join(f"{name} {value:.4g} ms" for name, value in verdict.times_ms.items()))
    for name, (low, middle, high) in (verdict.speedup or {}).items():
        lines.append(f"  speed-up over {name}: {middle:.3g} ({low:.3g} to {high:.3g})")
    if verdict.flags:
        lines.append(f"  flags: {', '.join(verdict.flags)}")
    if verdict.log and not verdict.correct:
        lines += ["  " + line for line in verdict.log.strip().splitlines()[-12:]]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        return importlib.import_module(COMMANDS[arguments[0]]).main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="cuda-judge",
        description="Judge a candidate kernel against a task's reference.",
        epilog=f"other commands: {', '.join(f'cuda-judge {name}' for name in COMMANDS)}",
    )
    parser.add_argument("task", metavar="TASK", help="Python file with Model, get_inputs, get_init_inputs")
    parser.add_argument("candidate", metavar="CANDIDATE", help="model_new.py, or a workspace folder")
    parser.add_argument("--backend", choices=BACKENDS, default="cpp")
    parser.add_argument("--policy", choices=POLICIES, default="libraries_allowed")
    parser.add_argument("--precision", choices=PRECISIONS, default=None)
    parser.add_argument("--track", choices=TRACKS, default="default")
    parser.add_argument("--json", action="store_true", help="the verdict as JSON on stdout and nothing else")
    options = parser.parse_args(arguments)
    try:
        task, candidate = task_from_path(options.task), candidate_from_path(options.candidate)
        verdict = judge(task, candidate, backend=options.backend, policy=options.policy, precision=options.precision, track=options.track)
    except ValueError as error:
        print(f"sandbox.judge: {error}", file=sys.stderr)
        return 2
    except SandboxError as error:
        print(f"sandbox.judge: the sandbox failed, no verdict: {error}", file=sys.stderr)
        return 3
    if isinstance(sys.stdout, io.TextIOWrapper):  # a candidate's words may hold what no encoding can write
        sys.stdout.reconfigure(errors="backslashreplace")
    print(json.dumps(verdict.to_dict(), indent=2) if options.json else describe(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
