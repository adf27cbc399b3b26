"""The transcript of an episode: everything that happened, nothing that moves the cursor, one line for a bad argument."""

import subprocess
import sys

import pytest

from data.records import ToolCall, Trajectory, Turn, Verdict
from data.store import TrajectoryStore
from stages.transcript import find, lines


def verdict(status, **more):
    return Verdict(status=status, task="t", candidate="c", backend="cpp", policy="libraries_allowed", **more)


def trajectory(sample):
    failed = verdict("incorrect", reason="output 0 at (0, 1): got 1, wanted 2")
    right = verdict("correct", times_ms={"candidate": 1.0}, speedup={"eager": (1.9, 2.0, 2.1)})
    turns = (
        Turn(index=0, text="plan\x1b[2J", tool_calls=(ToolCall(tool="verify", args={}),), observation="wrong\nline two", verdict=failed),
        Turn(index=1, text="hm", tool_calls=(ToolCall(tool="malformed", args={"error": "e"}),), trainable=False),
    )
    return Trajectory(
        task="t", checkpoint="c", stage="collect", round=0, sample=sample, turns=turns, stop="done", verdict=right, reward=1.0
    )


@pytest.fixture
def published(tmp_path):
    store = TrajectoryStore(tmp_path / "live", 0)
    for sample in range(3):
        store.add(trajectory(sample))
    store.publish(tmp_path / "all" / "collect")
    return tmp_path / "all"


def test_a_transcript_tells_every_turn_and_sends_no_control_character(published):
    wanted = trajectory(1)
    text = "\n".join(lines(find(published, wanted.id)))
    assert find(published / "collect", wanted.id).id == wanted.id
    for part in ("malformed 1", "turn 0: verify", "plan\\x1b[2J", "  > line two", "  = incorrect: output 0 at (0, 1)", "(no loss)"):
        assert part in text
    assert text.endswith("=== correct, 2.00x eager") and "\x1b" not in text


def test_bad_arguments_are_one_line_and_exit_2(published, tmp_path):
    with pytest.raises(ValueError, match="no trajectory"):
        find(published, "zzz")
    with pytest.raises(ValueError, match="3 trajectories"):
        find(published, "")
    ran = subprocess.run(
        [sys.executable, "-m", "stages.transcript", "x", "--folder", str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2 and ran.stderr.startswith("error: trajectories: got") and ran.stderr.count("\n") == 1
