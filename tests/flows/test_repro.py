"""The flow is DVC's graph: its tasks are DVC's stages, what DVC skips is `Cached`, and whatever ends it ends every child."""

import ast
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from stages import plan

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="session")
def repro(tmp_path_factory):
    """flows.repro under one temporary Prefect server without heartbeats (each would cost a second a run)."""
    os.environ["PREFECT_HOME"] = str(tmp_path_factory.mktemp("prefect"))
    os.environ["PREFECT_LOGGING_TO_API_ENABLED"] = "false"
    os.environ["REAL"] = str(ROOT)
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    from flows import repro

    with prefect_test_harness(server_startup_timeout=180), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield repro


def task_runs(started):
    """(name, state name, task run) of every task run since `started`, in order."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(limit=200)
    return [(run.name, run.state.name) for run in sorted(runs, key=lambda run: run.created) if run.created.timestamp() >= started]


def test_tasks_are_the_stages_of_the_real_dvc_yaml_in_an_order_that_can_run():
    from flows import repro

    found = repro.stages(ROOT)
    nodes = plan.read(ROOT)
    assert {stage.name for stage in found} == set(nodes)
    assert all(stage.meta == nodes[stage.name].meta for stage in found)
    seen = set()
    for stage in found:
        assert set(stage.needs) <= seen, stage.name
        seen.add(stage.name)
    with pytest.raises(ValueError, match="got 'nothing', wanted one of"):
        repro.stages(ROOT, ["nothing"])


def stages_named(code):
    """Stages of dvc.yaml that a string in the code names, alone or as a word of it (f-strings too); docstrings may."""
    names, tree = {node.stage for node in plan.read(ROOT).values()}, ast.parse(code)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose]
    return names & {word for text in texts for word in re.findall(r"\w+", text)}


@pytest.mark.parametrize("file", sorted((ROOT / "flows").glob("*.py")), ids=lambda file: file.name)
def test_the_flow_names_no_stage(file):
    assert not stages_named(file.read_text())


def test_a_stage_named_by_hand_is_found():
    assert {node.stage for node in plan.read(ROOT).values()} == stages_named(f"order = {[node.cmd for node in plan.read(ROOT).values()]}")
    assert stages_named('if stage.name == "report": pass') == {"report"}
    assert stages_named('retries = {"warm_start": 2}.get(name, 0)') == {"warm_start"}
    assert stages_named('first = f"rollout@{key}"') == {"rollout"}
    assert not stages_named('"""Any of them: a report, an update."""\nreport = progress.update(critic, "updated")')


def test_a_run_does_what_changed_and_shows_the_rest_as_cached(repro, toy_repo):
    started = time.time()
    toy_repo.edit("params.yaml", "  samples: 4\n  seed: 9", "  samples: 5\n  seed: 9")
    targets = ["evaluate@base"]
    states = repro.pipeline(targets=targets, root=str(toy_repo.path), tracking=False)
    assert states == {"synthesize": "Cached", "select": "Cached", "warm_start": "Cached", "evaluate@base": "Completed"}
    assert toy_repo.ran() == ["evaluate@base"]
    assert sorted(task_runs(started)) == sorted(states.items())
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts()
    shown = [artifact for artifact in artifacts if artifact.key == "evaluate-base"]
    assert shown and shown[0].data == 50.0 and "evaluate@base: 1/2 toy" in shown[0].description
    assert set(repro.pipeline(targets=targets, root=str(toy_repo.path), tracking=False).values()) == {"Cached"}
    assert not toy_repo.ran()


def test_a_failing_stage_fails_the_flow_and_bad_input_is_not_tried_again(repro, toy_repo):
    started = time.time()
    (toy_repo.path / "toy.py").write_text("import sys; open('tries', 'a').write('x'); sys.exit(2)\n")
    toy_repo.edit("params.yaml", "select:\n  seed: 1", "select:\n  seed: 2")
    with pytest.raises(repro.StageFailed, match="select: exit code 2"):
        repro.pipeline(targets=["select"], root=str(toy_repo.path), tracking=False)
    assert (toy_repo.path / "tries").read_text() == "x"
    assert ("select", "Failed") in task_runs(started)


def test_dvc_repro_needs_no_prefect_server(toy_repo):
    os.environ["PREFECT_API_URL"], before = "http://127.0.0.1:9/api", os.environ.get("PREFECT_API_URL")
    try:
        toy_repo.edit("params.yaml", "critic:\n  seed: 6", "critic:\n  seed: 66")
        assert toy_repo.dvc("repro", "critic").returncode == 0 and toy_repo.ran() == ["critic"]
    finally:
        os.environ.pop("PREFECT_API_URL") if before is None else os.environ.__setitem__("PREFECT_API_URL", before)


def gone(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().split()[2] == "Z"


def test_ending_a_stage_ends_its_whole_group_even_what_ignores_signals():
    from flows import repro

    stubborn = "import signal, time, os; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; print(os.getpid(), flush=True); time.sleep(300)"
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}]).wait()"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    below = int(child.stdout.readline())
    repro._end(child, graces=(1, 1, 5))
    assert gone(below) and child.poll() is not None


def test_a_child_ends_with_a_flow_that_is_killed():
    from flows import repro

    sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {repro.TIED!r}, '-c', {sleeper!r}], start_new_session=True).wait()"
    flow = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    below = int(flow.stdout.readline())
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    until = time.monotonic() + 10
    while not gone(below) and time.monotonic() < until:
        time.sleep(0.05)
    assert gone(below)
