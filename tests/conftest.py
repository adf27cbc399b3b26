"""A small DVC repository with the real dvc.yaml and the preset `tiny`, whose stages are a toy that writes their outs at once."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TOY = '''
import hashlib, json, os, pathlib, sys
name = "@".join(a for a in sys.argv[1:] if not a.startswith("--"))
sys.path.insert(0, os.environ["REAL"])
from stages import plan
node = plan.read()[name]
if os.path.exists("fail") and open("fail").read() == name:
    sys.exit("told to fail")
events = os.environ.get("CUDA_AGENT_EVENTS")
if events:
    open(events, "a").write(json.dumps({"stage": name, "done": 1, "total": 2, "text": "toy"}) + "\\n")
import yaml
values = [plan._lookup(yaml.safe_load(open("params.yaml")), path) for path in node.params]
seen = str(values) + hashlib.sha256(b"".join(p.read_bytes() for d in node.deps for p in sorted(pathlib.Path(d).rglob("*")) if p.is_file())).hexdigest()
for out in map(pathlib.Path, node.outs):
    if out.suffix == ".json":
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"stage": name}))
    else:
        out.mkdir(parents=True)
        (out / "content").write_text(name + seen)
open("ran", "a").write(name + "\\n")
print("toy", name)
'''


class ToyRepo:
    def __init__(self, path: pathlib.Path):
        self.path = path

    def dvc(self, *arguments: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "REAL": str(ROOT), "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1"}
        return subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=self.path, env=environment, capture_output=True, text=True, timeout=120)

    def ran(self) -> list[str]:
        """Stages that ran since the last call."""
        file = self.path / "ran"
        names = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return names

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.path / file).read_text()
        assert old in text
        (self.path / file).write_text(text.replace(old, new, 1))


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory) -> ToyRepo:
    """The toy repository after a whole `dvc repro`; copy it before changing it (fixture `toy_repo`)."""
    path = tmp_path_factory.mktemp("toy")
    shutil.copy(ROOT / ".dvcignore", path / ".dvcignore")
    shutil.copy(ROOT / "stages/presets/tiny.yaml", path / "params.yaml")
    shutil.copytree(ROOT / ".dvc", path / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "config.local"))
    (path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text().replace("python -m stages.", "python toy.py "))
    (path / "toy.py").write_text(TOY)
    for folder in ("data", "sandbox", "policy", "stages"):
        (path / folder).mkdir()
        (path / folder / "code.py").write_text("x = 1\n")
    (path / "policy" / "registry.py").write_text("x = 1\n")
    for source in re.findall(r"stages/\w+\.py", (ROOT / "dvc.yaml").read_text()):
        (path / source).write_text("x = 1\n")
    subprocess.run(["git", "init", "-q", "."], cwd=path, check=True)
    repo = ToyRepo(path)
    done = repo.dvc("repro")
    assert done.returncode == 0, done.stderr
    return repo


@pytest.fixture
def toy_repo(reproduced, tmp_path) -> ToyRepo:
    shutil.copytree(reproduced.path, tmp_path / "toy", symlinks=True)
    repo = ToyRepo(tmp_path / "toy")
    repo.ran()
    return repo
