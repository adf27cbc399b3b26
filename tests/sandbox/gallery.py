"""Cheats and their honest twins: one file or folder each, whose first line names the verdict it must get.

# verdict: STATUS[/RULE][|STATUS[/RULE]...] task=NAME [policy=mixed] [kinds=T3,W1|none] [twin=NAME] [backend=cuda] [min_ms=N]
           [max_speedup=N] [times=N] [needs=root]

kinds: what the cheat is, by the codes of test_kinds.py; none is a plain fault. twin: the honest entry that looks like it and must pass.
backend: where it is judged (default cpp; test_gallery_cuda.py judges those of cuda). A plan has its line, after `//`, in kernels.cu.
min_ms: the reported time may not be smaller. max_speedup: the low end of the speed-up over eager may not be larger, if there is one.
times: judged so often, one after another, and each verdict must be the one named. needs=root: only isolation level root or userns keeps it out; elsewhere it is not judged.
"""

import dataclasses
import pathlib

from sandbox.judge import candidate_from_path, task_from_path

HERE = pathlib.Path(__file__).parent
OPTIONS = {"task", "policy", "kinds", "twin", "backend", "min_ms", "max_speedup", "times", "needs"}


@dataclasses.dataclass
class Entry:
    name: str
    wanted: list[str]
    task: str
    policy: str
    min_ms: float
    max_speedup: float
    times: int
    needs_root: bool
    path: pathlib.Path
    kinds: tuple[str, ...]
    twin: str | None
    backend: str

    def candidate(self):
        return candidate_from_path(self.path)

    def accepts(self, verdict) -> bool:
        found = verdict.status.value
        return any(w in (found, f"{found}/{verdict.rule}") for w in self.wanted)


def read(folder: str, *, backend: str | None = "cpp") -> list[Entry]:
    """Entries of `cheats` or `honest` for one backend, None for all. Raises ValueError on an unknown option."""
    entries = [entry for path in sorted((HERE / folder).iterdir()) if (entry := _entry(path)) is not None]
    return [e for e in entries if backend in (None, e.backend)]


def _entry(path: pathlib.Path) -> Entry | None:
    mains = [path / "model_new.py", path / "kernels.cu"] if path.is_dir() else [path]
    main = next((m for m in mains if m.exists() and m.suffix in (".py", ".cu")), None)
    if main is None:
        return None
    words = main.read_text().partition("\n")[0].removeprefix("# verdict: ").removeprefix("// verdict: ").split()
    options = dict(w.split("=", 1) for w in words[1:])
    if not options.keys() <= OPTIONS:
        raise ValueError(f"{main}: got options {sorted(options)}, wanted only {', '.join(sorted(OPTIONS))}")
    kinds = options.get("kinds", "none")
    return Entry(
        name=path.stem,
        wanted=words[0].split("|"),
        task=options["task"],
        policy=options.get("policy", "libraries_allowed"),
        min_ms=float(options.get("min_ms", 0)),
        max_speedup=float(options.get("max_speedup", "inf")),
        times=int(options.get("times", 1)),
        needs_root="needs" in options,
        path=path,
        kinds=() if kinds == "none" else tuple(kinds.split(",")),
        twin=options.get("twin"),
        backend=options.get("backend", "cpp"),
    )


def task(name: str):
    return task_from_path(HERE / "tasks" / f"{name}.py")
