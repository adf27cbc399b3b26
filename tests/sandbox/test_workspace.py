"""Tools, paths, fixed files and observations of a workspace; a fake pool stands for the judge."""

import asyncio
import itertools
import os
import re
import time
import types

import pytest

from data.records import Candidate, SandboxError, Task, Verdict
from data.tools import ALL
from sandbox.shell import Shells
from sandbox.workspace import MAX_FILE_BYTES, FolderWorkspace, details, report

TASK = Task(source="class Model: ...\n", origin="user")


def verdict(status, candidate="c", reason="because", **more):
    rule = more.pop("rule", None) or ("import" if status == "rejected" else None)
    fields = ({"reason": reason} if status != "correct" else {"times_ms": {"candidate": 0.5213}}) | more
    return Verdict(status=status, rule=rule, task=TASK.id, candidate=candidate, backend="cpp", policy="libraries_allowed", **fields)


class Pool(types.SimpleNamespace):
    backend, policy, precision, track = "cpp", "libraries_allowed", None, "default"

    async def judge(self, task, candidate, *, fresh):
        self.seen.append((candidate, fresh))
        if isinstance(self.status, Exception):
            raise self.status
        return verdict(self.status, candidate.id)


@pytest.fixture
def workspace(tmp_path):
    return FolderWorkspace(TASK, pool=Pool(status="correct", seen=[]), format="cuda_extension", root=tmp_path)


def run(workspace, tool, **args):
    return asyncio.run(workspace.run(tool, args))


def test_written_files_are_the_candidate_and_fixed_files_are_not(workspace):
    assert workspace.candidate() is None
    assert run(workspace, "write", path="kernels/kernel.cpp", content="int x;").text == "ok"
    assert run(workspace, "write", path="model_new.py", content="import torch\n").text == "ok"
    files = {"kernels/kernel.cpp": "int x;\n", "model_new.py": "import torch\n"}
    assert workspace.candidate() == Candidate(format="cuda_extension", files=files)
    assert run(workspace, "read", path="model.py").text == TASK.source
    assert "cuda_extension" in run(workspace, "read", path="SKILL.md").text


@pytest.mark.parametrize(
    "path",
    ["../a.py", "/etc/a.py", "a/../../b.py", "", "a\0.py", "x" * 200 + ".py", "a b.py", "a.sh", "kernels", "..", ".", "model.py/x.py"],
)
def test_bad_paths_are_one_line_and_write_nothing(workspace, path, tmp_path):
    before = sorted(p.name for p in tmp_path.rglob("*"))
    result = run(workspace, "write", path=path, content="x")
    assert result.text.startswith("error") and "\n" not in result.text
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["SKILL.md", "model.py", "./model.py"])
def test_fixed_files_cannot_be_written_and_are_restored_before_a_judgement(workspace, name):
    assert "read-only" in run(workspace, "write", path=name, content="x").text
    path = workspace.folder / name
    path.unlink()
    path.write_text("changed")
    run(workspace, "write", path="a.py", content="x")
    asyncio.run(workspace.judge())
    assert path.read_text() == workspace.fixed[path.name]
    path.unlink()
    path.symlink_to("/etc/passwd")
    run(workspace, "verify")
    assert not path.is_symlink() and path.read_text() == workspace.fixed[path.name]


def test_links_and_pipes_are_never_followed(workspace, tmp_path):
    (tmp_path / "secret.py").write_text("secret")
    run(workspace, "write", path="a.py", content="x")
    (workspace.folder / "link.py").symlink_to(tmp_path / "secret.py")
    (workspace.folder / "folder").symlink_to(tmp_path)
    os.mkfifo(workspace.folder / "pipe.py")
    assert list(workspace.candidate().files) == ["a.py"]
    for path in ("link.py", "folder/secret.py", "pipe.py"):
        assert "secret" not in run(workspace, "read", path=path).text.replace("secret.py", "")
    assert run(workspace, "write", path="link.py", content="y").text.startswith("error")
    assert run(workspace, "write", path="folder/new.py", content="y").text.startswith("error") and not (tmp_path / "new.py").exists()


@pytest.mark.parametrize("content", ["\udcb2", "a\0b", "x" * (MAX_FILE_BYTES + 1)])
def test_text_that_no_file_can_hold_is_refused(workspace, content):
    assert run(workspace, "write", path="a.py", content=content).text.startswith("error")
    assert workspace.candidate() is None


def test_unknown_tools_and_arguments_are_answered(workspace):
    assert "no tool 'bash'" in run(workspace, "bash", command="ls").text
    assert "wanted path, content" in run(workspace, "write", path="a.py").text
    assert run(workspace, "verify", path="x").text.startswith("error")
    assert "a.py" not in run(workspace, "read", path="b.py").text
    (workspace.folder / "kernels").mkdir()
    assert run(workspace, "read", path="kernels").text.startswith("error: no file 'kernels'")


def test_looks_may_be_cached_and_the_scored_judgement_never_is(workspace):
    assert run(workspace, "verify").text.startswith("error: nothing")
    run(workspace, "write", path="a.py", content="x")
    assert run(workspace, "verify").verdict.correct
    asyncio.run(workspace.judge())
    assert [fresh for _, fresh in workspace.pool.seen] == [False, True]


def test_nothing_written_is_incorrect_without_asking_the_pool(workspace):
    found = asyncio.run(workspace.judge())
    assert (found.status.value, found.candidate) == ("incorrect", Candidate(format="cuda_extension", files={}).id)
    assert not workspace.pool.seen


def test_our_failures_pass_through(workspace):
    run(workspace, "write", path="a.py", content="x")
    workspace.pool.status = SandboxError("no disk")
    with pytest.raises(SandboxError):
        run(workspace, "verify")
    with pytest.raises(SandboxError):
        asyncio.run(workspace.judge())


def test_folder_is_private_and_goes_with_the_workspace(workspace):
    folder = workspace.folder
    assert folder.stat().st_mode & 0o077 == 0
    workspace.close()
    assert not folder.exists()


def test_observations_are_short_and_say_the_first_difference():
    speed = {"eager": (2.0, 2.123, 2.2), "compile": (1.0, 1.84, 2.0)}
    assert report(verdict("correct", speedup=speed)) == "correct: 0.521 ms, 2.1x eager, 1.8x compile"
    assert report(verdict("correct", speedup=None)) == "correct: 0.521 ms, too fast to compare"
    assert report(verdict("correct", speedup=speed), "compile") == report(verdict("incorrect"), "compile") == "compiled"
    error = "kernels/kernel.cpp:3:30: error: expected ';'"
    assert (
        report(verdict("compile_error", reason=error))
        == report(verdict("compile_error", reason=error), "compile")
        == f"compile error: {error}"
    )
    long = report(verdict("incorrect", reason="output 0 at (0, 1): got 1, wanted 2;\n" + "x" * 500))
    assert "got 1, wanted 2" in long and "\n" not in long and len(long) < 200


@pytest.mark.parametrize(
    "format, backend", [("cuda_extension", "cpp"), ("cuda_extension", "cuda"), ("plan", "cuda"), ("cupy", "cuda"), ("triton", "cuda")]
)
@pytest.mark.parametrize("policy", ["own_kernels_only", "libraries_allowed", "mixed"])
def test_skill_states_files_rules_tests_and_contract(format, backend, policy):
    from sandbox.skill import skill_text

    text = skill_text(format, backend, policy)
    assert all(word in text for word in ("## Files", policy, "## What is tested", "## Contract", format, "ModelNew"))


# ---------------------------------------------------------------------------------------- all tools


@pytest.fixture(scope="module")
def shells():
    found = Shells()
    yield found
    found.close()


@pytest.fixture
def full(tmp_path, shells):
    found = FolderWorkspace(TASK, pool=Pool(status="correct", seen=[]), format="cuda_extension", root=tmp_path, tools=ALL, shells=shells)
    try:
        found.shells.open(found.folder).close()
    except SandboxError as error:
        pytest.skip(str(error))
    yield found
    found.close()


def test_edits_are_all_or_none_and_want_one_place(workspace):
    workspace.tools = ALL
    run(workspace, "write", path="kernels/a.cpp", content="int a; int b; int b;")
    assert run(workspace, "edit", path="kernels/a.cpp", old="int a", new="long a").text == "ok"
    assert "old stands 2 times" in run(workspace, "edit", path="kernels/a.cpp", old="int b", new="x").text
    edits = [{"old": "long a", "new": "c"}, {"old": "missing", "new": "d"}]
    assert "edit 2: old stands 0 times" in run(workspace, "multi_edit", path="kernels/a.cpp", edits=edits).text
    assert run(workspace, "read", path="kernels/a.cpp").text == "long a; int b; int b;\n"
    assert run(workspace, "edit", path="model.py", old="class", new="x").text == "error: model.py is read-only"
    assert run(workspace, "multi_edit", path="kernels/a.cpp", edits=edits[:1]).text == "ok"
    assert run(workspace, "read", path="kernels/a.cpp").text == "c; int b; int b;\n"


def test_glob_names_files_and_no_links(workspace, tmp_path):
    workspace.tools = ALL
    for path in ("kernels/a.cpp", "model_new.py"):
        run(workspace, "write", path=path, content="x")
    (workspace.folder / "link.py").symlink_to("/etc/passwd")
    assert run(workspace, "glob", pattern="**/*.py").text == "model.py\nmodel_new.py"
    assert run(workspace, "glob", pattern="kernels/*").text == "kernels/a.cpp"
    assert run(workspace, "glob", pattern="*.cu").text.startswith("no file matches")


def test_bash_and_the_file_tools_share_the_files(full):
    run(full, "write", path="kernels/a.cpp", content="int x;")
    got = run(full, "bash", command="cat kernels/a.cpp; echo 'int y;' >> kernels/a.cpp; mkdir more; echo z > more/b.py").text
    assert re.fullmatch(r"\[\d+\.\d s\] exit 0\nint x;", got)
    assert run(full, "read", path="kernels/a.cpp").text == "int x;\nint y;\n"
    assert list(full.candidate().files) == ["kernels/a.cpp", "more/b.py"]
    assert run(full, "grep", pattern="int [xy]").text == "kernels/a.cpp:1:int x;\nkernels/a.cpp:2:int y;"
    assert run(full, "grep", pattern="it's", path="kernels").text.startswith("no line matches")
    assert re.search(r"\] exit 3$", run(full, "bash", command="exit 3").text)
    assert "ended after 1 s" in run(full, "bash", command="sleep 9", seconds=1).text
    assert run(full, "bash", command="ls", seconds=1000).text == "error: bash: seconds: got 1000, wanted 1 to 120"


def test_without_a_shell_bash_says_so(workspace):
    workspace.tools = ALL
    assert run(workspace, "bash", command="ls").text == "error: bash: this workspace has no shell"
    assert run(workspace, "output", job=1).text == "error: no job 1; jobs: none"


def test_what_a_background_process_swaps_after_the_snapshot_has_no_effect(full):
    run(full, "write", path="model_new.py", content="first")
    command = "i=0; while true; do i=$((i+1)); echo $i > a.tmp; mv a.tmp a.py; echo $i > b.tmp; mv b.tmp b.py; done"
    assert "job 1 runs" in run(full, "bash", command=command, background=True).text
    time.sleep(0.3)
    for _ in range(20):  # a.py and b.py are one apart at most where nothing ran while they were read
        files = full.candidate().files
        assert 0 <= int(files["a.py"]) - int(files["b.py"]) <= 1
    before = full.candidate()
    found = asyncio.run(full.judge())
    assert found.candidate == before.id == full.pool.seen[-1][0].id
    stands = (full.folder / "a.py").read_text()
    time.sleep(0.3)
    assert (full.folder / "a.py").read_text() == stands  # its processes ended with the judgement
    assert run(full, "output", job=1).text == "error: no job 1; jobs: none"


def test_tampering_is_refused_or_put_back_and_told(full):
    run(full, "write", path="a.py", content="x")
    run(full, "bash", command="chmod u+w model.py; echo x > model.py; rm -rf model.py; mkdir model.py; ln -sf /etc/passwd SKILL.md")
    assert run(full, "verify").text.startswith("correct")
    assert (full.folder / "model.py").read_text() == TASK.source and "# Write a faster" in (full.folder / "SKILL.md").read_text()
    (full.folder / "model.py").unlink()
    (full.folder / "model.py").mkdir()
    assert run(full, "verify").text.endswith("note: model.py was changed; it is put back")
    assert asyncio.run(full.judge()).flags == ("tampered:model.py",)
    assert full.tampered[-1] == "model.py" and (full.folder / "model.py").read_text() == TASK.source


def test_links_that_a_command_makes_lead_nowhere(full, tmp_path):
    (tmp_path / "out").mkdir()
    run(full, "bash", command=f"ln -s {tmp_path}/out out; ln -s /etc/passwd p.py; mkfifo q.py; mkdir -p {'d/' * 1200}; echo x > ok.py")
    assert run(full, "write", path="out/a.py", content="x").text.startswith("error") and not list((tmp_path / "out").iterdir())
    assert run(full, "read", path="p.py").text.startswith("error") and run(full, "read", path="q.py").text.startswith("error")
    assert list(full.candidate().files) == ["ok.py"]


def test_a_workspace_that_grows_too_large_is_ended(full):
    got = run(full, "bash", command="for i in 1 2 3; do head -c 30000000 /dev/zero > f$i; done").text
    assert "holds more than" in got
    assert "exit 0" in run(full, "bash", command="rm f1 f2 f3").text


def test_details_name_the_next_errors_with_file_and_line_and_the_same_fact_in_the_same_words():
    lines = [f"kernels/k.cpp:{n}:5: error: expected ';'" for n in (3, 4, 9, 12)]
    log = "kernels/k.cpp: In function 'f':\n" + "\n    |  x\n".join([*lines, lines[1]])
    found = verdict("compile_error", reason=lines[0], log=log)
    assert details(found, "compile") == [lines[1], lines[2], "and 1 more errors"]
    nvcc = verdict("compile_error", reason="k.cu(3): error: a", log="k.cu(3): error: a\nk.cu(7): error: b\n")
    assert details(nvcc, "verify") == ["k.cu(7): error: b"]
    crashes = [verdict("runtime_error", log=f"Traceback\n\n at 0x7f{n}a\nValueError: x\n") for n in (1, 2)]
    assert details(crashes[0], "verify") == details(crashes[1], "verify") == ["Traceback", " at 0x...".strip(), "ValueError: x"]
    times = {"candidate": 0.5, "eager": 1.0}
    fast = verdict("correct", times_ms=times, speed_of_light=0.43, own_kernel_share=0.9, kernels=("k1", "k2"))
    assert details(fast, "profile") == [
        "times: candidate 0.5 ms, eager 1 ms",
        "speed of light: 43%",
        "own kernels: 90% of the time: k1, k2",
    ]
    assert details(fast, "verify") == details(verdict("incorrect"), "verify") == []


def test_players_with_the_basic_tools_get_the_one_line_alone(workspace):
    run(workspace, "write", path="a.py", content="x")
    assert "\n" not in run(workspace, "profile").text
    workspace.tools = ALL
    assert "\ntimes: candidate 0.521 ms" in run(workspace, "profile").text


def test_150_turns_with_a_shell_extend_every_request_and_leave_the_snapshot_that_was_judged(full):
    from policy.episode import play
    from policy.prompt import Prompt, call_text
    from policy.sampler import Completion

    requests = []

    async def generate(segments, *, max_new_tokens, seed):
        requests.append("".join(s.text for s in segments))
        turn = len(requests)
        kinds = [
            call_text("bash", command=f"echo {turn} >> log.py; seq {turn * 40}"),
            call_text("write", path="model_new.py", content=f"x = {turn}") + call_text("verify"),
            call_text("grep", pattern="x = ", path="model_new.py") + call_text("glob", pattern="*.py"),
            call_text("bash", command="while true; do date +%N > swap.py; done", background=True) if turn < 20 else "thinking",
            call_text("edit", path="model_new.py", old="x = ", new="y = ") + call_text("todo", items="- go on"),
        ]
        text = call_text("submit") if turn == 150 else kinds[turn % 5]
        return Completion(ids=None, logprobs=None, text=text, finish_reason="stop", policy_version="v")

    prompt = Prompt(None, format="cuda_extension", backend="cpp", max_turns=200, tools=ALL)
    settings = {
        "checkpoint": "c",
        "stage": "s",
        "round": 0,
        "sample": 0,
        "seed": 1,
        "max_turns": 200,
        "max_new_tokens": 64,
        "context": 1 << 17,
    }
    got = asyncio.run(play(TASK, generate, full, prompt=prompt, reward=lambda v: 1.0, **settings))
    assert (got.stop, len(got.turns), got.reward) == ("done", 150, 1.0)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(requests))
    assert got.verdict.candidate == got.candidate.id and len(got.candidate.files["log.py"].split()) == 29
    assert sum(call.tool == "malformed" for turn in got.turns for call in turn.tool_calls) == 26
    assert "bytes left out]" in got.turns[144].observation
