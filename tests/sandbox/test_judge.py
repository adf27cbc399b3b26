"""The public door: command line, slots, pool, blame."""

import asyncio
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import conftest
import gallery
import pytest

from data.records import Baselines, Candidate, SandboxError, Status, Task, Verdict
from sandbox import backends
from sandbox import judge as door
from sandbox import pool as pools
from sandbox.backends import Limits
from sandbox.pool import Pool

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="module", autouse=True)
def slots_are_free_again():
    pools.let_go()
    yield
    pools.let_go()


def command(*words: str, **keywords) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "sandbox.judge", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, **keywords
    )


def entry(name: str) -> gallery.Entry:
    return next(e for e in gallery.read("cheats") + gallery.read("honest") if e.name == name)


def judged(name: str, **keywords) -> Verdict:
    e = entry(name)
    return door.judge(conftest.known_task(e.task), e.candidate(), policy=e.policy, limits=conftest.LIMITS, **keywords)


def test_the_command_line_gives_json_and_nothing_else_and_exits_0_for_any_verdict():
    done = command(str(HERE / "tasks/relu.py"), str(HERE / "cheats/torch_wrapper.py"), "--json")
    assert done.returncode == 0, done.stderr
    verdict = Verdict.from_dict(json.loads(done.stdout))
    assert (verdict.status, verdict.rule) == (Status.REJECTED, "torch_op")


def test_bad_paths_and_options_exit_2_with_one_line():
    done = command("nowhere.py", str(HERE / "cheats/zeros.py"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "nowhere.py" in done.stderr
    assert command("a", "b", "--policy", "anything").returncode == 2


def test_help_is_quick():
    begin = time.monotonic()
    assert command("--help").returncode == 0
    assert time.monotonic() - begin < 2.0


def test_a_missing_compiler_is_the_users_affair(tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = command(str(HERE / "tasks/relu.py"), str(HERE / "honest/relu"), env=environment)
    assert done.returncode == 2 and "g++" in done.stderr and done.stderr.count("\n") == 1


def test_a_task_that_is_no_task_is_a_verdict():
    verdict = door.judge(Task(source="x = 1", origin="user"), entry("relu").candidate(), limits=conftest.LIMITS)
    assert verdict.status is Status.TASK_INVALID and "Model" in verdict.reason


def test_a_reference_that_takes_its_process_down_is_a_fact_about_the_task():
    source = gallery.task("relu").source.replace("return torch.relu(x)", "import os; os.abort()")
    verdict = door.judge(Task(source=source, origin="user"), entry("relu").candidate(), limits=conftest.LIMITS)
    assert verdict.status is Status.TASK_INVALID
    assert judged("relu").correct


def test_a_verdict_records_where_it_was_reached():
    verdict = judged("relu")
    assert verdict.environment["isolation_level"] in ("root", "userns", "uid", "process") and verdict.environment["seccomp"] is True
    assert verdict.times_ms.keys() == {"candidate", "eager", "compile"} and verdict.kernels == ("relu",)
    assert set(verdict.stages_s) == {"check", "build", "prepare", "run"}


def test_a_hostile_candidate_leaves_nothing_for_the_next():
    task, hostile, honest = conftest.known_task("relu"), entry("hang").candidate(), entry("relu").candidate()
    found = [door.judge(task, c, policy="mixed", limits=conftest.LIMITS).status for c in (hostile, honest, hostile, honest)]
    assert found == ["timeout", "correct", "timeout", "correct"]
    uid = pools._local[("cpp", True)].lease.index + 61000
    held = [p for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and _uid(p) == uid]
    assert not held, "a candidate's uid owns no process after its verdict"


def _uid(process: pathlib.Path) -> int | None:
    try:
        return process.stat().st_uid
    except FileNotFoundError:
        return None


def test_verdicts_come_quickly_once_the_task_is_ready():
    judged("relu")
    wrong = entry("relu").candidate()
    wrong = Candidate(
        format=wrong.format,
        files={**wrong.files, "kernels/kernel.cpp": wrong.files["kernels/kernel.cpp"].replace("? x[i]", "? 2 * x[i]", 1)},
    )
    task = conftest.known_task("relu")
    seconds = []
    for _ in range(3):
        begin = time.monotonic()
        assert door.judge(task, wrong, limits=conftest.LIMITS).status is Status.INCORRECT
        seconds.append(time.monotonic() - begin)
    assert min(seconds) < 0.8, seconds


def test_baselines_of_this_machine_are_used_and_those_of_another_are_not():
    task = conftest.known_task("relu")
    mine = dataclasses.replace(task, baselines=dataclasses.replace(task.baselines, eager_ms=1.0, compile_ms=3.0))
    verdict = door.judge(mine, entry("relu").candidate(), limits=conftest.LIMITS)
    ratio = verdict.times_ms["compile"] / verdict.times_ms["eager"]
    # prepared once for the task with compile = eager; a new slot sees the new baseline
    pools.let_go()
    verdict = door.judge(mine, entry("relu").candidate(), limits=conftest.LIMITS)
    assert abs(verdict.times_ms["compile"] / verdict.times_ms["eager"] - 3.0) < 1e-6 or abs(ratio - 3.0) < 1e-6


def test_a_task_that_will_be_dropped_for_its_eager_time_is_not_compiled():
    async def measured():
        async with pools.Pool(limits=conftest.LIMITS, slots=1) as pool:
            return await pool.measure(gallery.task("softmax"), worth=(1e5, 2e5))

    found = asyncio.run(measured())
    assert found.compile_ms is None and 0 < found.eager_ms < 1e5 and all(found.controls.values())


def test_measure_gives_baselines_and_controls():
    found = door.measure(gallery.task("softmax"), limits=conftest.LIMITS)
    assert found.invalid is None and found.eager_ms > 0 and found.compile_ms > 0
    assert found.controls.keys() >= {"zeros", "constant", "copy", "other_inputs", "other_weights", "repeatable"} and all(found.controls.values())
    assert found.output_bytes == found.input_bytes == 256 * 512 * 4
    assert Baselines(eager_ms=found.eager_ms, compile_ms=found.compile_ms, environment=found.environment).environment["cpu"]
    degenerate = gallery.task("relu").source.replace("return torch.relu(x)", "return x * 0.0")
    assert "degenerate" in door.measure(Task(source=degenerate, origin="user"), limits=conftest.LIMITS).invalid


def test_the_pool_shares_questions_in_flight_and_remembers_what_is_not_fresh():
    pools.let_go()
    task, candidate = conftest.known_task("relu"), entry("relu").candidate()

    async def run():
        async with Pool(limits=conftest.LIMITS) as pool:
            first = await asyncio.gather(*(pool.judge(task, candidate, fresh=False) for _ in range(3)))
            again = await pool.judge(task, candidate, fresh=False)
            fresh = await pool.judge(task, candidate, fresh=True)
            group = await pool.judge_group(task, [candidate, entry("decoy_never_called").candidate()], fresh=False)
            return pool.counts, first, again, fresh, group

    counts, first, again, fresh, group = asyncio.run(run())
    assert counts == {"judged": 3, "cached": 2, "shared": 2, "sandbox_errors": 0}
    assert len({v.id for v in [*first, again]}) == 1 and fresh.id != again.id
    assert [v.status for v in group] == ["correct", "rejected"]


def test_a_lost_slot_is_our_failure_retried_once_and_then_told(monkeypatch):
    pools.let_go()

    async def run(kills: int):
        async with Pool(limits=conftest.LIMITS, slots=1) as pool:
            (slot,) = pool.slots
            real, left = slot.ask, [kills]

            def ask(request, limits):
                if left[0]:
                    left[0] -= 1
                    if slot.judge is None:
                        slot.start()
                    slot.zygote.send_signal(signal.SIGKILL)
                    slot.zygote.wait()
                return real(request, limits)

            monkeypatch.setattr(slot, "ask", ask)
            return await pool.judge(conftest.known_task("relu"), entry("relu").candidate(), fresh=True)

    assert asyncio.run(run(1)).correct
    with pytest.raises(SandboxError):
        asyncio.run(run(2))


def test_a_process_does_not_wait_for_itself(monkeypatch):
    monkeypatch.setattr(backends, "slots", lambda name: ["cpu0"])

    async def run():
        async with Pool(limits=conftest.LIMITS):
            door.judge(conftest.known_task("relu"), entry("relu").candidate(), limits=conftest.LIMITS)

    pools.let_go()
    with pytest.raises(SandboxError, match="itself"):
        asyncio.run(run())


def test_a_killed_owner_leaves_no_process_behind():
    pools.let_go()
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(HERE)!r}]\n"
        "import conftest, gallery\nfrom sandbox import judge, pool\n"
        "e = next(e for e in gallery.read('honest') if e.name == 'relu')\n"
        "judge.judge(conftest.known_task('relu'), e.candidate(), limits=conftest.LIMITS)\n"
        "print(next(iter(pool._local.values())).zygote.pid, flush=True)\nimport time; time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    zygote = int(owner.stdout.readline())
    family = _family(zygote)
    assert len(family) >= 3
    owner.kill()
    owner.wait()
    end = time.monotonic() + 10
    while time.monotonic() < end and any(os.path.exists(f"/proc/{p}") for p in family):
        time.sleep(0.05)
    assert not [p for p in family if os.path.exists(f"/proc/{p}")]


def _family(pid: int) -> list[int]:
    children = [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(p for c in children for p in _family(c))]


@pytest.mark.skipif(not shutil.which("unshare"), reason="unshare(1) is not installed")
@pytest.mark.parametrize("level, spaces", [("userns", 0), ("process", 1)])
def test_without_root_the_best_level_there_is_holds(level, spaces, tmp_path):
    tmp_path.chmod(0o777)
    limit = "echo 1 > /proc/sys/user/max_user_namespaces; " if spaces else ""
    script = (
        limit
        + f"exec unshare -U --map-user=1000 --map-group=1000 {sys.executable} -m sandbox.judge {HERE}/tasks/relu.py {HERE}/cheats/is_root.py --policy mixed --json"
    )
    done = subprocess.run(
        ["unshare", "-U", "-r", "sh", "-c", script],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    verdict = json.loads(done.stdout)
    assert verdict["environment"]["isolation_level"] == level and verdict["status"] == "incorrect", done.stderr


@pytest.mark.slow
def test_a_candidate_that_builds_itself_is_judged_like_any_other():
    (e,) = gallery.read("slow")
    limits = dataclasses.replace(conftest.LIMITS, build_s=300.0, total_s=320.0, memory_bytes=4 << 30)
    assert door.judge(conftest.known_task(e.task), e.candidate(), policy=e.policy, limits=limits).correct


def test_limits_and_measurements_are_records():
    assert Limits.from_dict(Limits().to_dict()) == Limits()
