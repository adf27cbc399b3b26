"""The programs that measure the judge, on the smallest real case."""

import json
import subprocess
import sys


def soak(folder, *words):
    command = [sys.executable, "-m", "sandbox.study.soak", "--out", str(folder), "--seconds", "120", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def verdicts(folder):
    return [line for line in (folder / "soak.jsonl").read_text().splitlines() if "status" in json.loads(line)]


def test_a_soak_ends_complete_and_the_same_folder_judges_nothing_twice(tmp_path):
    done = soak(tmp_path, "--count", "6")
    assert done.returncode == 0, done.stderr
    lines = verdicts(tmp_path)
    figures = {f["figure"]: f["value"] for p in tmp_path.glob("*.json") for f in json.loads(p.read_text())}
    assert len(lines) >= 6 and figures["SandboxErrors"] == 0 and figures["hostile candidates credited"] == 0
    again = soak(tmp_path, "--count", "6")
    assert again.returncode == 0 and verdicts(tmp_path) == lines


def test_a_folder_of_another_setting_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = soak(tmp_path / "file", "--count", "6")
    assert done.returncode == 2 and "Traceback" not in done.stderr
