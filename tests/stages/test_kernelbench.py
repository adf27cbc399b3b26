"""A KernelBench run judged by our judge: its layout in and out, its figures by hand."""

import json

import pytest

from data.records import Verdict
from stages import kernelbench

PROBLEM = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return {}


def get_inputs():
    return [torch.randn(256, 1024)]


def get_init_inputs():
    return []
"""
KERNEL = "import torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return {}\n"


def verdict(status="correct", eager=None, **fields):
    speedup = {"eager": (eager * 0.99, eager, eager * 1.01), "compile": (0.5, 0.6, 0.7)} if eager else None
    if status == "correct":
        fields |= {"speedup": speedup, "times_ms": {"candidate": 1.0, "eager": eager or 1.0}}
    elif "reason" not in fields:
        fields["reason"] = status
    return Verdict(status=status, task="t", candidate="c", backend="cpp", policy="mixed", **fields)


def test_pass_at_k_is_the_unbiased_estimate():
    assert kernelbench.pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert kernelbench.pass_at_k(5, 2, 2) == pytest.approx(0.7)  # 1 - C(3,2) / C(5,2)
    assert kernelbench.pass_at_k(5, 0, 3) == 0.0 and kernelbench.pass_at_k(3, 1, 3) == 1.0


def test_figures_count_every_problem_strictly_and_leave_out_what_says_nothing():
    verdicts = {
        (1, 0): verdict(eager=1.0), (1, 1): verdict("incorrect", reason="output 0"),
        (2, 0): verdict(eager=4.0), (2, 1): verdict(eager=3.0),
        (3, 0): verdict("rejected", rule="library_call"),
        (4, 0): verdict("task_invalid", reason="degenerate: the control 'zeros' passes as a correct answer"),
        (5, 0): verdict("compile_error"),
        (6, 0): verdict(),
    }  # fmt: skip
    found = kernelbench.figures(verdicts, [1, 2, 3, 4, 5, 6, 7])
    assert found["problems"] == 7 and found["with_kernel"] == 6 and found["degenerate"] == [4] and found["task_invalid"] == []
    # Six problems count: 4 says nothing, 7 has no kernel and failed
    assert found["correct"]["value"] == pytest.approx(3 / 6) and found["compiled"]["value"] == pytest.approx(4 / 6)
    fast = {p: value["value"] for p, value in found["fast_p_eager"].items()}
    assert fast == {"0": 3 / 6, "0.5": 2 / 6, "0.8": 2 / 6, "1": 1 / 6, "1.5": 1 / 6, "2": 1 / 6}
    assert found["faster_eager"]["value"] == pytest.approx(1 / 6) and found["fast_p_compile"]["1"]["value"] == 0.0
    assert found["geometric_mean_eager"]["value"] == pytest.approx(2.0) and found["timed_eager"] == 2
    assert found["pass_at_k"]["1"] == {"value": pytest.approx((0.5 + 1 + 0 + 0 + 1) / 5), "problems": 5}
    assert found["pass_at_k"]["2"] == {"value": pytest.approx(1.0), "problems": 2} and found["rejected"] == {"library_call": 1}
    assert found["correct"]["low"] < 0.5 < found["correct"]["high"]
    text = kernelbench.table(found)
    assert "1 degenerate" in text and "| fast_1 | 16.7%" in text and "pass@2: 100.0% over 2 problems." in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run_name=r"], "got no level, problems"),
        (["run_name=r", "level=one", "problems=p"], "level: got 'one', wanted int"),
        (["run_name=r", "level=1", "problems=p", "backend=tpu"], "backend: got 'tpu', wanted one of cpp, cuda"),
        (["run_name=r", "level=1", "problems=p", "colour=red"], "got 'colour=red', wanted key=value"),
        (["run_name=r", "level=1", "problems=p", "subset=5"], "subset: got '5', wanted FIRST-LAST"),
        (["run_name=r", "level=1", "problems=p"], "got no kernel of level 1"),
    ],
)
def test_bad_arguments_are_one_line(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert kernelbench.main(arguments) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1


@pytest.mark.timeout(300)
def test_a_run_is_judged_goes_on_and_is_written_as_kernelbench_reads_it(tmp_path, capsys):
    level, run = tmp_path / "exam" / "level1", tmp_path / "runs" / "mine"
    level.mkdir(parents=True)
    run.mkdir(parents=True)
    (level / "1_Softsign.py").write_text(PROBLEM.format("x / (1.0 + torch.abs(x))"))
    (level / "2_Silu.py").write_text(PROBLEM.format("x * torch.sigmoid(x)"))
    (level / "3_Square.py").write_text(PROBLEM.format("x * x"))
    for problem, sample, text in (
        (1, 0, KERNEL.format("torch.nn.functional.softsign(x)")), (1, 1, KERNEL.format("x")),
        (2, 0, "class ModelNew(:\n"), (9, 0, KERNEL.format("x")),
    ):  # fmt: skip
        (run / f"level_1_problem_{problem}_sample_{sample}_kernel.py").write_text(text)
    arguments = ["run_name=mine", "level=1", f"problems={tmp_path / 'exam'}", f"runs={tmp_path / 'runs'}", "backend=cpp", "num_correct_trials=5"]
    assert kernelbench.main(arguments) == 2  # problem 9 is not in the exam
    told = capsys.readouterr()
    assert "got no problem 9 of level 1" in told.err and "num_correct_trials has no meaning" in told.err and "fast_1" in told.out
    entries = json.loads((run / "eval_results.json").read_text())
    assert {p: [(e["sample_id"], e["compiled"], e["correctness"]) for e in found] for p, found in entries.items()} == {
        "1": [(0, True, True), (1, True, False)],
        "2": [(0, False, False)],
    }
    assert entries["1"][0]["runtime"] > 0 and entries["1"][1]["runtime"] == -1.0
    assert json.loads((run / "baseline_eager.json").read_text())["level1"]["1_Softsign.py"]["mean"] > 0
    assert set(json.loads((run / "baseline_eager.json").read_text())["level1"]) == {"1_Softsign.py", "2_Silu.py", "3_Square.py"}
    figures = json.loads((run / "judged_level_1.json").read_text())["figures"]
    assert figures["problems"] == 3 and figures["correct"]["value"] == pytest.approx(1 / 3)
    # Only what changed is judged again
    lines = (run / "verdicts.jsonl").read_text().splitlines()
    assert len(lines) == 3
    (run / "level_1_problem_9_sample_0_kernel.py").unlink()
    (run / "level_1_problem_2_sample_0_kernel.py").write_text(KERNEL.format("torch.nn.functional.silu(x)"))
    assert kernelbench.main(arguments) == 0
    assert len((run / "verdicts.jsonl").read_text().splitlines()) == 4
    assert json.loads((run / "judged_level_1.json").read_text())["figures"]["correct"]["value"] == pytest.approx(2 / 3)
