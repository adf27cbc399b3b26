from __future__ import annotations

import os
import pathlib

import pytest

from data.kernelbench import load, main
from data.selection import read_fingerprints
from tests.data.examples import SOURCE


@pytest.fixture
def clone(tmp_path) -> pathlib.Path:
    """A folder laid out as KernelBench is, with our own problems."""
    for name in ("level1/10_Half.py", "level1/2_Half.py", "level2/1_Half_Again.py", "level3/1_Deep.py"):
        path = tmp_path / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE.replace("64", str(100 + len(name))))
    (tmp_path / "KernelBench" / "level1" / "readme.py").write_text("not a problem")
    return tmp_path


def test_problems_come_in_order_of_level_and_number_with_their_origin(clone):
    tasks = load(clone)
    assert [t.origin for t in tasks] == ["kernelbench/1/2", "kernelbench/1/10", "kernelbench/2/1", "kernelbench/3/1"]
    assert {t.split for t in tasks} == {"test"}
    assert load(clone / "KernelBench") == tasks


def test_levels_and_problems_can_be_chosen_and_operators_traced(clone):
    (task,) = load(clone, levels=[1], problems=[10], traced=True)
    assert (task.origin, task.operators) == ("kernelbench/1/10", ("relu", "mul"))


@pytest.mark.parametrize(
    ("text", "said"), [("def f(:\n", ":1: got"), ("x = 1\ndef f(:\n", ":2: got"), ("x = 1", ":1: got no Model"), (b"\xff\xfe", ":1: got")]
)
def test_an_unreadable_problem_names_its_file_and_line_and_the_rest_is_loaded(clone, caplog, text, said):
    bad = clone / "KernelBench/level1/2_Half.py"
    bad.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert [t.origin for t in load(clone, levels=[1])] == ["kernelbench/1/10"]
    assert f"2_Half.py{said}" in caplog.text


def test_an_untraceable_problem_is_kept_without_operators(clone, caplog):
    path = clone / "KernelBench/level1/2_Half.py"
    path.write_text(SOURCE.replace("torch.relu(x)", "x.item()"))
    assert load(clone, problems=[2], traced=True)[0].operators == ()
    assert "kernelbench/1/2" in caplog.text


def test_without_kernelbench_the_message_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="wanted a clone of KernelBench: git clone https"):
        load(tmp_path)
    (tmp_path / "level1").mkdir()
    with pytest.raises(ValueError, match="got no problem of levels"):
        load(tmp_path)


def test_two_files_of_one_number_are_refused(clone):
    (clone / "KernelBench/level1/2_Other.py").write_text(SOURCE)
    with pytest.raises(ValueError, match="wanted one file a number"):
        load(clone)


@pytest.mark.skipif(not os.environ.get("KERNELBENCH"), reason="set KERNELBENCH to a clone of KernelBench to read the real problems")
def test_the_real_problems_load_and_trace():
    tasks = load(os.environ["KERNELBENCH"], traced=True)
    assert len(tasks) == 250
    assert sum(bool(t.operators) for t in tasks) >= 240


def test_the_command_writes_fingerprints_of_a_clone_and_says_what_is_wrong(clone, tmp_path, capsys):
    path = tmp_path / "exam.gz"
    assert main([str(clone), str(path)]) == 0
    assert [f.origin for f in read_fingerprints(path)] == ["kernelbench/1/2", "kernelbench/1/10", "kernelbench/2/1", "kernelbench/3/1"]
    assert "4 problems, 4 traced" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere"), str(path)]) == 2
    assert "wanted a clone of KernelBench: git clone" in capsys.readouterr().err
