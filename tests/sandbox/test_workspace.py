"""Tools, paths, fixed files and observations of a workspace; a fake pool stands for the judge."""

import asyncio
import os
import types

import pytest

from data.records import Candidate, SandboxError, Task, Verdict
from sandbox.workspace import MAX_FILE_BYTES, FolderWorkspace, report

TASK = Task(source="class Model: ...\n", origin="user")


def verdict(status, candidate="c", reason="because", **more):
    fields = {"reason": reason} if status != "correct" else {"times_ms": {"candidate": 0.5213}} | more
    rule = more.get("rule") or ("import" if status == "rejected" else None)
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
