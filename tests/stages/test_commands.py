"""Every command says what it does within a second, heavy libraries unloaded."""

import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("data", "sandbox", "policy", "stages", "flows")
    for path in (ROOT / package).glob("*.py")
    if 'if __name__ == "__main__"' in path.read_text() and (package == "stages" or "argparse" in path.read_text())
)


@pytest.mark.parametrize("module", COMMANDS)
def test_help_answers_within_a_second(module):
    # The processor's time of the child: a shared machine may be slow, the command may not.
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and "usage" in done.stdout, done.stderr
    assert min(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) < 1.0


def test_report_shows_what_was_published(tmp_path):
    import json

    from stages import report

    figures = {"pass_rate": 0.5, "pass_rate_low": 0.25, "pass_rate_high": 0.75, "faster_eager": 0.5, "faster_eager_low": 0.1, "faster_eager_high": 0.9,
               "faster_compile": 0.0, "faster_compile_low": 0.0, "faster_compile_high": 0.1, "episodes": 4, "turns": 2.0}
    row = {"task": "t", "status": "incorrect", "stop": "done", "operators": ["relu", "<sum>"], "reason": "got | 1", "trajectory": "x1"}
    result = {"player": "r01", "order": 4, "checkpoint": {"kind": "ppo"}, "figures": figures, "statuses": {"correct": 2, "incorrect": 2}, "episodes": [row]}
    metrics = [{"stage": "update@r01", "seconds": 3, "headline": "h", "finished": 1, "journal": [{"loss": 1.0}, {"loss": 0.5}]}]
    assert report.draw([result], metrics, tmp_path / "curves.png") and (tmp_path / "curves.png").stat().st_size > 5000
    assert report.result_row(result)[:2] == ["r01", "50% [25%, 75%]"]
    failures = report.failures([json.loads(json.dumps(result))], 8)
    text = report.page("T", "n", [("Failures", report.table(["a", "b", "c", "d"], failures))], None)
    assert "&lt;sum&gt;" in text and "http" not in text
    assert "got \\| 1" in report.as_markdown(report.table(["a", "b", "c", "d"], failures))
