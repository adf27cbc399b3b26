"""What the agent types: confined, bounded in time and output, stopped for a snapshot, gone with the episode."""

import concurrent.futures
import os
import time

import pytest

from data.records import SandboxError
from sandbox.shell import EDGE_BYTES, Shells


@pytest.fixture(scope="module")
def shells():
    found = Shells()
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "workspace"
    path.mkdir()
    path.chmod(0o1777)  # the folder of a workspace: what others own cannot be moved away
    (path / "model.py").write_text("task")
    (path / "model.py").chmod(0o444)
    return path


@pytest.fixture
def shell(shells, folder):
    try:
        found = shells.open(folder)
    except SandboxError as error:
        pytest.skip(str(error))
    yield found
    found.close()


def test_commands_see_the_workspace_and_nothing_else(shell, folder, tmp_path):
    (tmp_path / "secret").write_text("secret")
    assert shell.run("cat model.py; echo made > new.py", 10) == {"status": 0, "text": "task", "left_out": 0}
    assert (folder / "new.py").read_text() == "made\n"
    seen = shell.run(f"cat {tmp_path}/secret /etc/shadow; ls {os.getcwd()}/data; ls /home", 10)
    assert seen["status"] != 0 and "secret\n" not in seen["text"].splitlines(True) and "No such file" in seen["text"]


def test_there_is_no_network_and_no_way_to_the_server(shell):
    assert "Operation not permitted" in shell.run("python -c 'import socket; socket.socket()' 2>&1 | tail -1", 20)["text"]
    assert shell.run("kill -9 1; kill -9 -1; echo on", 10)["text"].endswith("on\n")


def test_a_file_of_another_owner_stays(shell, folder):
    if shell.owner is None:
        pytest.skip("without root all files are ours")
    assert shell.run("rm -f model.py; mv model.py x; echo y > model.py", 10)["status"] != 0
    assert (folder / "model.py").read_text() == "task" and not (folder / "x").exists()


def test_a_process_group_ends_with_its_call_and_at_its_time(shell):
    started = time.monotonic()
    assert shell.run("echo a; sleep 60 & sleep 60", 0.5) == {"status": None, "text": "a\n", "left_out": 0}
    shell.run("sleep 60 &", 10)
    assert time.monotonic() - started < 5
    assert "sleep" not in shell.run("ps axo stat,comm | grep -v ^Z", 10)["text"]


def test_head_and_tail_of_long_output_are_kept_and_the_rest_is_counted(shell):
    got = shell.run("seq 100000", 20)
    assert got["text"].startswith("1\n2\n") and got["text"].endswith("99999\n100000\n")
    assert got["left_out"] == 588895 - 2 * EDGE_BYTES and f"[{got['left_out']} bytes left out]" in got["text"]


def test_jobs_go_on_are_stopped_for_a_snapshot_and_can_be_killed(shell, folder):
    job = shell.start("while true; do date +%s%N > t.tmp; mv t.tmp t.py; done")["job"]
    deadline = time.monotonic() + 10
    while not (folder / "t.py").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    shell.freeze()
    before = (folder / "t.py").read_text()
    time.sleep(0.2)
    assert (folder / "t.py").read_text() == before
    shell.thaw()
    time.sleep(0.2)
    assert (folder / "t.py").read_text() != before
    assert shell.output(job)["status"] is None and shell.kill(job)["status"] == -9
    assert shell.output(job + 1)["error"] == f"no job {job + 1}; jobs: {job}"


def test_what_runs_ends_with_the_shell(shell, folder):
    shell.start("setsid bash -c 'while true; do date +%s%N > t.py; done'")
    time.sleep(0.3)
    shell.close()
    before = (folder / "t.py").read_text()
    time.sleep(0.3)
    assert (folder / "t.py").read_text() == before
    with pytest.raises(EOFError):
        shell.run("true", 1)


def test_shells_side_by_side_have_files_processes_and_uids_of_their_own(shells, tmp_path):
    def one(number):
        path = tmp_path / f"w{number}"
        path.mkdir()
        path.chmod(0o1777)
        shell = shells.open(path)
        shell.start("exec sleep 300")
        wait = "until ps axo comm | grep -q ^sleep; do :; done"
        said = [shell.run(f"echo {number} >> own; {wait}; cat own | wc -l; id -u; ls; ps axo comm | grep -c ^sleep", 20) for _ in range(3)]
        return shell, [answer["text"].split() for answer in said]

    try:
        shells.open(tmp_path).close()
    except SandboxError as error:
        pytest.skip(str(error))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(one, range(8)))
    uids = set()
    for shell, said in found:
        assert [answer[0] for answer in said] == ["1", "2", "3"]
        assert all(answer[2:] == ["own", "1"] for answer in said)  # its own sleeper, none of the seven others'
        uids.add(said[0][1])
        shell.close()
    assert found[0][0].owner is None or len(uids) == 8
