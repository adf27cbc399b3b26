"""The guard: killed at any moment, a stage never shows a half output, goes on where it was, and never runs twice at once."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TOY = '''
"""Twenty slow steps, each kept; the out is what all of them left."""
import os, time
from stages.stage import main
def run(job):
    steps = job.work / "steps"
    steps.mkdir(exist_ok=True)
    mode = open("mode").read()
    for step in range(20):
        if not (steps / str(step)).exists():
            time.sleep(0.05)
            with open("played", "a") as played: played.write(f"{step}\\\\n")
            (steps / str(step)).write_text(str(step))
            job.record(step=step, loss=1.0 / (1 + step))
        job.progress(step + 1, 20, "steps")
        if mode == "bad" and step == 3: raise ValueError("rft.epochs: got 0,\\\\nwanted more")
        if mode == "lost" and step == 3:
            from data.records import SandboxError
            raise SandboxError("no disk")
        if mode == "hidden": job.params.update
    out = job.out("artifacts/out")
    out.mkdir(exist_ok=True)
    for step in range(20):
        (out / str(step)).write_text((steps / str(step)).read_text())
        if mode == "slow end": time.sleep(0.05)
    job.summary = {"headline": f"lr {job.params.rft.lr}", "figures": {"steps": 20}}
if __name__ == "__main__":
    main(__file__, run)
'''
DVC = """
stages:
  toy:
    cmd: python toy.py
    deps: [input]
    params: [rft]
    outs: [artifacts/out]
    metrics: [artifacts/metrics/toy.json]
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "toy.py").write_text(TOY.replace("\\\\", "\\"))
    (tmp_path / "dvc.yaml").write_text(DVC)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    (tmp_path / "input").write_text("one")
    (tmp_path / "mode").write_text("good")
    return tmp_path


def begin(place, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("CUDA_AGENT_EVENTS", None)
    return subprocess.Popen(
        [sys.executable, "toy.py", *arguments], cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(place, *arguments):
    child = begin(place, *arguments)
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


def played(place):
    return [int(line) for line in (place / "played").read_text().split()] if (place / "played").exists() else []


def wait_for(condition, seconds=30.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def test_a_whole_run_publishes_outs_metrics_and_events(place):
    code, _out, err = finish(place)
    assert code == 0, err
    assert len(list((place / "artifacts/out").iterdir())) == 20
    metrics = json.loads((place / "artifacts/metrics/toy.json").read_text())
    assert metrics["stage"] == "toy" and metrics["figures"]["steps"] == 20 and metrics["seconds"] >= 1.0
    assert [row["step"] for row in metrics["journal"]] == list(range(20))
    events = [json.loads(line) for line in (place / "work/toy/events.jsonl").read_text().splitlines()]
    assert events[-1]["done"] == events[-1]["total"] == 20


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_shows_nothing_and_goes_on_where_it_was(place, number):
    child = begin(place)
    wait_for(lambda: len(played(place)) >= 5)
    child.send_signal(number)
    child.communicate(timeout=30)
    assert child.returncode == (-9 if number == signal.SIGKILL else 143)
    assert not (place / "artifacts").exists()
    code, _, err = finish(place)
    assert code == 0, err
    assert sorted(set(played(place))) == list(range(20)) and len(played(place)) <= 21
    assert len(list((place / "artifacts/out").iterdir())) == 20


def test_a_kill_while_outs_are_written_shows_no_half_out(place):
    (place / "mode").write_text("slow end")
    child = begin(place)
    wait_for(lambda: (place / "work/toy").exists() and list((place / "work/toy").glob("*/out/artifacts/out/5")))
    child.kill()
    child.communicate()
    assert not (place / "artifacts/out").exists()
    assert finish(place)[0] == 0
    assert len(list((place / "artifacts/out").iterdir())) == 20


def test_other_inputs_never_resume_an_old_run(place):
    child = begin(place)
    wait_for(lambda: len(played(place)) >= 5)
    child.kill()
    child.communicate()
    (place / "input").write_text("two")
    (place / "played").unlink()
    assert finish(place)[0] == 0
    assert played(place) == list(range(20))
    assert len([path for path in (place / "work/toy").iterdir() if path.is_dir()]) == 1


def test_finished_work_is_published_again_until_dvc_has_recorded_it(place):
    assert finish(place)[0] == 0
    subprocess.run(["rm", "-r", "artifacts"], cwd=place, check=True)
    assert finish(place)[0] == 0
    assert len(played(place)) == 20 and (place / "artifacts/out/19").exists()
    # Once dvc.lock holds the stage, another start is a rerun on purpose.
    (place / "dvc.lock").write_text("stages: {toy: {cmd: python toy.py, outs: [{path: artifacts/out, md5: abc}]}}\n")
    assert finish(place)[0] == 0
    assert len(played(place)) == 40
    assert finish(place, "--fresh")[0] == 0
    assert len(played(place)) == 60


def test_the_same_stage_never_runs_twice_at_once(place):
    first = begin(place)
    wait_for(lambda: len(played(place)) >= 2)
    assert finish(place)[0] == 0
    first.communicate(timeout=30)
    assert first.returncode == 0
    # The second waited for the first and found its work finished.
    assert played(place) == list(range(20))


def test_the_stage_ends_when_its_parent_is_killed(place):
    script = "import subprocess, sys; c = subprocess.Popen([sys.executable, 'toy.py']); print(c.pid, flush=True); c.wait()"
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    wait_for(lambda: len(played(place)) >= 2)
    parent.kill()
    parent.wait()
    wait_for(lambda: not pathlib.Path(f"/proc/{child}").exists() or "Z" in pathlib.Path(f"/proc/{child}/stat").read_text().split()[2])
    assert not (place / "artifacts").exists()


@pytest.mark.parametrize(("mode", "code", "text"), [("bad", 2, "rft.epochs: got 0, wanted more"), ("lost", 3, "no disk")])
def test_errors_of_users_and_of_ours_are_one_line_with_their_own_code(place, mode, code, text):
    (place / "mode").write_text(mode)
    got, _, err = finish(place)
    assert got == code and text in err and err.count("\n") == 1
    assert not (place / "artifacts").exists()
    (place / "mode").write_text("good")
    assert finish(place)[0] == 0
    assert len(played(place)) == 20


def test_a_param_that_dvc_yaml_does_not_list_cannot_be_read(place):
    (place / "mode").write_text("hidden")
    code, _, err = finish(place)
    assert code == 1 and "does not list update" in err


def test_missing_inputs_and_unknown_stages_are_one_line(place):
    (place / "input").unlink()
    code, _, err = finish(place)
    assert code == 2 and "input: got nothing there" in err and err.count("\n") == 1
    (place / "dvc.yaml").write_text(DVC.replace("toy:", "other:"))
    code, _, err = finish(place)
    assert code == 2 and "got no such stage" in err and err.count("\n") == 1


def test_a_step_taken_again_after_a_kill_stands_once_in_the_journal(tmp_path):
    from stages.stage import Job

    job = Job(name="rft", key=None, params=None, work=tmp_path, root=tmp_path)
    for step, loss in ((1, 0.9), (2, 0.8), (3, 0.7), (2, 0.5), (3, 0.4), (4, 0.3)):
        job.record(fit="fit", step=float(step), loss=loss)
    job.record(fit="other", step=2.0, loss=1.0)
    job.record(note=1)
    job.record(note=2)
    assert [row.get("loss") for row in job.journal()] == [0.9, 0.5, 0.4, 0.3, 1.0, None, None]
