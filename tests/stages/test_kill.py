"""kill -9 in the middle of every long stage of the real pipeline, then `dvc repro`: nothing lost but the step, nothing twice, nobody left.

About thirteen minutes on two cores, so `make test` leaves it out: `python -m pytest -m long tests/stages/test_kill.py -s`.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from stages.stage import folder_name

ROOT = pathlib.Path(__file__).parents[2]
KILLED = (
    "select", "teacher", "warm_start", "single_turn", "collect", "rft", "critic",
    "rollout@r01", "update@r01", "rollout@r02", "update@r02", "evaluate@sft", "evaluate@r02",
)
SMALLER = {
    "synthesize": {"count": 24},
    "select": {"test": 6},
    "warm_start": {"practice": 1500, "epochs": 4, "judged": 2},
    "single_turn": {"tasks": 4},
    "collect": {"samples": 2},
    "rft": {"min_reward": 1.0, "batch": 4},
    "critic": {"batch": 4},
    "rollout": {"tasks": 6, "samples": 2},
    "update": {"batch": 4},
    "evaluate": {"samples": 1},
}


@pytest.fixture
def repository(tmp_path) -> pathlib.Path:
    """The tracked files of this repository as a repository of their own, with a smaller preset."""
    root = tmp_path / "repository"
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    (root / "dvc.lock").unlink(missing_ok=True)
    values = yaml.safe_load((root / "stages/presets/tiny.yaml").read_text())
    for section, changes in SMALLER.items():
        values[section] |= changes
    (root / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    return root


def repro(root: pathlib.Path) -> subprocess.Popen:
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    log = (root / "repro.log").open("ab")
    return subprocess.Popen([sys.executable, "-m", "dvc", "repro"], cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True)


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def alive(root: pathlib.Path) -> list[str]:
    """Command lines of living processes that work in the repository or were started for it."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if path.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            here = os.readlink(path / "cwd").startswith(str(root)) or f"PYTHONPATH={root}".encode() in (path / "environ").read_bytes().split(b"\0")
            if here:
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def progressed(root: pathlib.Path, stage: str) -> bool:
    """True once the stage is between its first and its last step."""
    path = root / "work" / folder_name(stage) / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return any(0 < event.get("done", 0) < event.get("total", 0) for event in events)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_kill_9_in_every_long_stage_loses_no_more_than_the_step(repository):
    outs = {}
    for name, node in yaml.safe_load((repository / "dvc.yaml").read_text())["stages"].items():
        for out in node.get("do", node)["outs"]:
            outs.setdefault(name, []).append(out)
    for stage in KILLED:
        process = repro(repository)
        while not progressed(repository, stage):
            assert process.poll() is None, f"dvc repro left before {stage} made progress:\n{(repository / 'repro.log').read_text()[-3000:]}"
            time.sleep(0.2)
        for pid in family(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
        name, _, key = stage.partition("@")
        places = [repository / re.sub(r"\$\{(key|item)\}", key, out) for out in outs[name]]
        assert not [p for p in places if p.exists()], f"{stage}: an output stands after the kill"
        deadline = time.monotonic() + 30
        while alive(repository) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert not alive(repository), f"{stage}: processes are left"
        print(f"killed {stage}", flush=True)
    process = repro(repository)
    assert process.wait() == 0, (repository / "repro.log").read_text()[-3000:]
    assert not alive(repository)

    from data.sql import connect

    views = connect(repository / "artifacts")
    runs = views.sql("select run, count(*), count(distinct trajectory) from episodes group by run order by run").fetchall()
    assert runs and all(rows == distinct for _, rows, distinct in runs), runs
    expected = yaml.safe_load((repository / "params.yaml").read_text())
    tests = views.sql("select count(*) from tasks where split = 'test'").fetchall()[0][0]
    counts = {run: rows for run, rows, _ in runs}
    assert counts["evaluate-r02"] == tests * expected["evaluate"]["samples"]
    assert counts["rollout-r01"] == expected["rollout"]["tasks"] * expected["rollout"]["samples"]
