"""The agent's tools over a private folder: write, read, compile, verify, profile, submit.

Text only: nothing here runs what the agent wrote. Candidates are judged as text snapshots by the pool, in its own isolation.
The folder's fixed files (SKILL.md, model.py) are read-only and are put back before every judgement.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import stat
import tempfile
from typing import Any

from data.records import Candidate, Status, Task, ToolResult, Verdict
from sandbox.skill import skill_text

SUFFIXES = (".py", ".cpp", ".cc", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".json")
MAX_FILE_BYTES = 256 << 10
MAX_FILES = 64
MAX_READ_CHARACTERS = 8000
MAX_LINE = 160
"""Characters of an observation's line that comes from a compiler or a comparison."""


class FolderWorkspace:
    """One episode's workspace, the `Workspace` of data/records.py.

    pool: an entered sandbox.pool.Pool (its backend and policy decide what SKILL.md says). format: of the candidate. root: where the
    private folder is made (default: the system's temporary folder); it goes when the workspace does.
    """

    def __init__(self, task: Task, *, pool, format: str, root: str | os.PathLike[str] | None = None):
        self.task, self.pool, self.format = task, pool, format
        self._temporary = tempfile.TemporaryDirectory(prefix="workspace-", dir=root, ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._temporary.name)
        self.fixed = {"SKILL.md": skill_text(format, pool.backend, pool.policy), "model.py": task.source}
        self._restore()

    def close(self) -> None:
        """Remove the folder now."""
        self._temporary.cleanup()

    async def run(self, tool: str, args: dict[str, Any]) -> ToolResult:
        """Run one tool. A bad call is a ToolResult that says so in one line. Raises SandboxError."""
        tools = {"write": self._write, "read": self._read, "submit": self._submit}
        try:
            if tool in tools:
                return tools[tool](**args)
            if tool in ("compile", "verify", "profile"):
                return await self._ask(tool, **args)
        except TypeError:
            return ToolResult(text=f"error: {tool}: got {', '.join(args) or 'no parameters'}, wanted {_WANTED[tool]}")
        return ToolResult(text=f"error: no tool {tool[:20]!r}; tools: {', '.join(_WANTED)}")

    def candidate(self) -> Candidate | None:
        """Snapshot of the agent's files; None without any. Links and special files are left out, never followed."""
        files = {}
        for folder, folders, names in os.walk(self.folder, followlinks=False):
            folders.sort()
            for name in sorted(names):
                path = pathlib.Path(folder, name)
                relative = path.relative_to(self.folder).as_posix()
                if relative in self.fixed or path.suffix not in SUFFIXES:
                    continue
                text = _read_regular(path)
                if text is not None:
                    files[relative] = text
        return Candidate(format=self.format, files=files) if files else None

    async def judge(self) -> Verdict:
        """The scored judgement: fresh, uncached. Without any file it is `incorrect`, and the verdict's candidate is the id of the
        empty candidate (`Candidate(format, files={})`). Raises SandboxError."""
        self._restore()
        candidate = self.candidate()
        if candidate is None:
            return Verdict(
                status=Status.INCORRECT,
                reason="no candidate: nothing was written",
                task=self.task.id,
                candidate=Candidate(format=self.format, files={}).id,
                backend=self.pool.backend,
                policy=self.pool.policy,
                precision=self.pool.precision or self.task.precision,
                track=self.pool.track,
            )
        return await self.pool.judge(self.task, candidate, fresh=True)

    # --------------------------------------------------------------------------------------- tools

    def _write(self, path: str, content: str) -> ToolResult:
        place, error = self._place(path)
        if error:
            return ToolResult(text=error)
        if path in self.fixed or place.relative_to(self.folder).as_posix() in self.fixed:
            return ToolResult(text=f"error: {path} is read-only")
        if place.suffix not in SUFFIXES:
            return ToolResult(text=f"error: {path[:60]}: wanted a name that ends in {', '.join(SUFFIXES)}")
        try:
            data = (content if content.endswith("\n") else content + "\n").encode()
        except UnicodeEncodeError:
            return ToolResult(text="error: the content is not valid Unicode")
        if len(data) > MAX_FILE_BYTES or b"\0" in data:
            return ToolResult(text=f"error: got {len(data)} bytes, wanted text of at most {MAX_FILE_BYTES} without NUL")
        if not place.exists() and sum(len(names) for _, _, names in os.walk(self.folder)) >= MAX_FILES:
            return ToolResult(text=f"error: got more than {MAX_FILES} files")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        except (IsADirectoryError, NotADirectoryError, FileExistsError):
            return ToolResult(text=f"error: {path[:60]}: a file and a folder share this name")
        return ToolResult(text="ok")

    def _read(self, path: str) -> ToolResult:
        place, error = self._place(path)
        if error:
            return ToolResult(text=error)
        text = _read_regular(place)
        if text is None:
            names = sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())
            return ToolResult(text=f"error: no file {path[:60]!r}; files: {', '.join(names)[:200]}")
        return ToolResult(text=text[:MAX_READ_CHARACTERS])

    def _submit(self) -> ToolResult:
        return ToolResult(text="submitted", done=True)

    async def _ask(self, tool: str) -> ToolResult:
        self._restore()
        candidate = self.candidate()
        if candidate is None:
            return ToolResult(text="error: nothing to judge; write the files first")
        verdict = await self.pool.judge(self.task, candidate, fresh=False)
        return ToolResult(text=report(verdict, tool), verdict=verdict)

    def _place(self, path: str) -> tuple[pathlib.Path, str | None]:
        pure = pathlib.PurePosixPath(path)
        bad = not path or len(path) > 120 or "\0" in path or pure.is_absolute() or ".." in pure.parts or not re.fullmatch(r"[\w./-]+", path)
        place = self.folder / pure
        if bad or not place.parent.resolve().is_relative_to(self.folder.resolve()) or place.is_symlink():
            return place, f"error: {path[:60]!r}: wanted a relative path inside the workspace"
        return place, None

    def _restore(self) -> None:
        """Put the fixed files back where they are missing or differ."""
        for name, text in self.fixed.items():
            path = self.folder / name
            wanted = hashlib.sha256(text.encode("utf-8", "replace")).digest()
            if path.is_symlink() or not path.is_file() or hashlib.sha256(path.read_bytes()).digest() != wanted:
                fresh = self.folder / f".{name}.fresh"
                fresh.write_bytes(text.encode("utf-8", "replace"))
                fresh.chmod(0o444)
                os.replace(fresh, path)


_WANTED = {
    "write": "path, content",
    "read": "path",
    "compile": "no parameters",
    "verify": "no parameters",
    "profile": "no parameters",
    "submit": "no parameters",
}


def _read_regular(path: pathlib.Path) -> str | None:
    """Text of a plain file of sane size; None for anything else. No link is followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_FILE_BYTES:
            return None
        return file.read(MAX_FILE_BYTES + 1).decode("utf-8", "replace")


def report(verdict: Verdict, tool: str = "verify") -> str:
    """A verdict as a short observation in stable wording. Example: "correct: 0.52 ms, 2.1x eager, 1.8x compile"."""
    if verdict.correct:
        if tool == "compile":
            return "compiled"
        speed = [f"{middle:.2g}x {name}" for name, (_, middle, _) in (verdict.speedup or {}).items()]
        return ", ".join([f"correct: {verdict.times_ms['candidate']:.3g} ms", *(speed or ["too fast to compare"])])
    if tool == "compile" and verdict.status in _AFTER_BUILD:
        return "compiled"
    name = verdict.status.value.replace("_", " ")
    rule = f" ({verdict.rule})" if verdict.rule else ""
    return f"{name}{rule}: {_one_line(verdict.reason or '')}"


_AFTER_BUILD = (Status.INCORRECT, Status.RUNTIME_ERROR, Status.TIMEOUT, Status.OUT_OF_MEMORY)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "..."
