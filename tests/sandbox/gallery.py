"""Cheats and their honest twins: one file or folder each, whose first line names the verdict it must get.

# verdict: STATUS[/RULE][|STATUS[/RULE]...] task=NAME [policy=mixed] [min_ms=N] [needs=root]

needs=root: only isolation level root or userns keeps it out; elsewhere it is not judged.
"""

import dataclasses
import pathlib

from sandbox.judge import candidate_from_path, task_from_path

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Entry:
    name: str
    wanted: list[str]
    task: str
    policy: str
    min_ms: float
    needs_root: bool
    path: pathlib.Path

    def candidate(self):
        return candidate_from_path(self.path)

    def accepts(self, verdict) -> bool:
        found = verdict.status.value
        return any(w in (found, f"{found}/{verdict.rule}") for w in self.wanted)


def read(folder: str) -> list[Entry]:
    entries = []
    for path in sorted((HERE / folder).iterdir()):
        main = path / "model_new.py" if path.is_dir() else path
        if not main.exists() or main.suffix != ".py":
            continue
        words = main.read_text().splitlines()[0].removeprefix("# verdict: ").split()
        options = dict(w.split("=") for w in words[1:])
        wanted, policy = words[0].split("|"), options.get("policy", "libraries_allowed")
        entries.append(Entry(path.stem, wanted, options["task"], policy, float(options.get("min_ms", 0)), "needs" in options, path))
    return entries


def task(name: str):
    return task_from_path(HERE / "tasks" / f"{name}.py")
