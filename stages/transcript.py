"""`python -m stages.transcript TRAJECTORY`: one episode on the terminal, turn by turn: what was written, called, answered and judged.

TRAJECTORY: its id or a beginning of it. No stage of the pipeline: it reads what stages published, or what a running one has played so far.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterator

from data.records import Trajectory
from data.store import stream_trajectories

FOLDER = "artifacts/trajectories"


def find(folder: pathlib.Path, start: str) -> Trajectory:
    """The one trajectory under `folder` (published, or a folder of published folders) whose id begins with `start`. Raises ValueError."""
    published = [folder] if (folder / "episodes").is_dir() else sorted(path.parent for path in folder.glob("*/episodes"))
    if not published:
        raise ValueError(f"trajectories: got {folder}, wanted a folder that a stage published")
    found = {t.id: t for path in published for t in stream_trajectories(path) if t.id.startswith(start)}
    if len(found) != 1:
        what = f"{len(found)} trajectories ({', '.join(sorted(found)[:3])}, ...)" if found else "no trajectory"
        raise ValueError(f"trajectory: got {start!r}, which begins {what} of {folder}, wanted one")
    return next(iter(found.values()))


def lines(trajectory: Trajectory) -> Iterator[str]:
    """The transcript, line by line. Control characters, which a player may well have written, are shown and not sent to the terminal."""
    malformed = sum(call.tool == "malformed" for turn in trajectory.turns for call in turn.tool_calls)
    yield f"trajectory {trajectory.id}  task {trajectory.task}  stage {trajectory.stage}  round {trajectory.round}  sample {trajectory.sample}"
    yield f"checkpoint {trajectory.checkpoint}  turns {len(trajectory.turns)}  malformed {malformed}  stop {trajectory.stop}  reward {trajectory.reward}"
    for turn in trajectory.turns:
        calls = ", ".join(call.tool for call in turn.tool_calls) or "no call"
        tokens = f"{len(turn.action_ids)}+{len(turn.observation_ids)} tokens"
        spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in sorted(turn.seconds.items()))
        planted = "" if turn.trainable else "  (no loss)"
        yield f"\n--- turn {turn.index}: {calls}  [{tokens}; {spent or 'no times'}; {turn.finish_reason}]{planted}"
        yield _shown(turn.text)
        if turn.observation:
            yield "\n".join(f"  > {line}" for line in _shown(turn.observation).split("\n"))
        if turn.verdict:
            yield f"  = {turn.verdict.status.value}{_because(turn.verdict)}"
    verdict = trajectory.verdict
    yield f"\n=== {verdict.status.value + _because(verdict) if verdict else trajectory.error or 'no verdict'}"


def _because(verdict) -> str:
    if verdict.correct:
        return "".join(f", {middle:.2f}x {name}" for name, (_, middle, _) in sorted((verdict.speedup or {}).items()))
    return f": {_shown(verdict.reason or '')}"


def _shown(text: str) -> str:
    return "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def main() -> None:
    """Print one transcript; a bad argument is one line and exit 2."""
    parser = argparse.ArgumentParser(prog="python -m stages.transcript", description=__doc__)
    parser.add_argument("trajectory", help="id, or its beginning")
    parser.add_argument("--folder", default=FOLDER, type=pathlib.Path, help=f"published trajectories (default {FOLDER})")
    options = parser.parse_args()
    try:
        found = find(options.folder, options.trajectory)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for line in lines(found):
        print(line)


if __name__ == "__main__":
    main()
