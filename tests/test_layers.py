"""data <- sandbox | policy <- stages; flows import none of them. Held by import-linter, with the contracts in pyproject.toml."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def lint(folder):
    command = [pathlib.Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", folder / "pyproject.toml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_layers_hold():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("policy/planted.py", "import sandbox"),
        ("sandbox/planted.py", "from policy import registry"),
        ("data/planted.py", "from policy import registry"),
        ("flows/planted.py", "from stages import plan"),
        ("stages/track.py", "from flows import ui"),
        ("stages/synthesize.py", "from stages import evaluate"),
    ],
)
def test_a_planted_breach_is_found(tmp_path, module, line):
    for package in ("data", "sandbox", "policy", "stages", "flows"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / module).open("a") as file:
        file.write(f"\n{line}\n")
    assert lint(tmp_path).returncode == 1
