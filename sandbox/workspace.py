"""The agent's tools over a private folder (data/tools.py has the table).

The trusted side handles text only. What the agent runs, it runs in sandbox/shell.py; candidates are judged as text snapshots by the
pool, in its own isolation. Files are reached folder by folder without following a link, so that a process of the agent cannot turn a
path round under a tool. The fixed files (SKILL.md, model.py) are read-only and are put back before every judgement.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fnmatch
import hashlib
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator
from typing import Any

from data.records import Candidate, Status, Task, ToolResult, Verdict
from data.tools import BASH_S, BASIC, check, wanted
from sandbox.skill import skill_text

SUFFIXES = (".py", ".cpp", ".cc", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".json")
MAX_FILE_BYTES = 256 << 10
MAX_FILES = 64
MAX_READ_CHARACTERS = 8000
MAX_FOLDER_BYTES = 64 << 20
"""More than this after a command, and every process of the workspace is ended."""
MAX_DEPTH, MAX_WALK = 8, 4096
"""Folders inside each other, and files, beyond which none is looked at."""
MAX_HITS = 50
"""Names of a glob and lines of a grep that are shown."""
MAX_LINE = 160
"""Characters of an observation's line that comes from a compiler or a comparison."""


class FolderWorkspace:
    """One episode's workspace, the `Workspace` of data/records.py.

    pool: an entered sandbox.pool.Pool (its backend and policy decide what SKILL.md says). format: of the candidate. root: where the
    private folder is made (default: the system's temporary folder); it goes when the workspace does. tools: names that may be called.
    shells: a sandbox.shell.Shells, without which `bash` is answered with an error.
    """

    def __init__(
        self,
        task: Task,
        *,
        pool,
        format: str,
        root: str | os.PathLike[str] | None = None,
        tools: tuple[str, ...] = BASIC,
        shells=None,
    ):
        self.task, self.pool, self.format, self.tools, self.shells = task, pool, format, tools, shells
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="workspace-", dir=root))
        self._removal = weakref.finalize(self, _remove, str(self.folder), shells is not None)
        if shells is not None:
            # Inside a folder that is ours alone: the agent's uid may write here and not take away what is not its own
            self.folder /= "workspace"
            self.folder.mkdir()
            self.folder.chmod(0o1777)
        self.fixed = {"SKILL.md": skill_text(format, pool.backend, pool.policy, tools), "model.py": task.source}
        self.tampered: list[str] = []
        """Fixed files that were found changed or gone, one entry each time."""
        self.todo = ""
        self._shell, self._owner, self._started, self._standing = None, None, time.monotonic(), None
        self._restore()
        self.tampered.clear()

    def close(self) -> None:
        """End the workspace's processes and remove the folder now."""
        self._end_shell()
        self._removal()

    def __del__(self):
        self._end_shell()

    async def run(self, tool: str, args: dict[str, Any]) -> ToolResult:
        """Run one tool. A bad call is a ToolResult that says so in one line. Raises SandboxError."""
        if tool not in self.tools:
            return ToolResult(text=f"error: no tool {tool[:20]!r}; tools: {', '.join(self.tools)}")
        checked = check(tool, args)
        if isinstance(checked, str):
            return ToolResult(text=f"error: {tool}: got {', '.join(args) or 'no parameters'}, wanted {wanted(tool)}")
        self._standing = None
        if tool in ("compile", "verify", "profile"):
            return await self._ask(tool)
        if tool in ("bash", "output", "kill", "grep"):  # they wait for the shell
            return await asyncio.to_thread(getattr(self, f"_{tool}"), **checked)
        return getattr(self, f"_{tool}")(**checked)

    def candidate(self) -> Candidate | None:
        """Snapshot of the agent's files, taken with its processes stopped; None without any. Links and special files are left out, never
        followed. It stands until the next tool runs: `judge` takes the same."""
        with self._stopped():
            files = {}
            for path, name, handle in self._walk():
                if path in self.fixed or pathlib.PurePosixPath(path).suffix not in SUFFIXES or len(files) >= MAX_FILES:
                    continue
                text = _read_regular(name, handle)
                if text is not None:
                    files[path] = text
        self._standing = (Candidate(format=self.format, files=files) if files else None,)
        return self._standing[0]

    async def judge(self) -> Verdict:
        """The scored judgement: fresh, uncached. Without any file it is `incorrect`, and the verdict's candidate is the id of the
        empty candidate (`Candidate(format, files={})`). Raises SandboxError."""
        self._restore()
        (candidate,) = self._standing or (self.candidate(),)
        self._end_shell()
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
        return self._flagged(await self.pool.judge(self.task, candidate, fresh=True), self.tampered)

    # --------------------------------------------------------------------------------------- tools

    def _write(self, path: str, content: str) -> ToolResult:
        error = self._wrong_target(path)
        if error:
            return ToolResult(text=error)
        try:
            data = (content if content.endswith("\n") else content + "\n").encode()
        except UnicodeEncodeError:
            return ToolResult(text="error: the content is not valid Unicode")
        if len(data) > MAX_FILE_BYTES or b"\0" in data:
            return ToolResult(text=f"error: got {len(data)} bytes, wanted text of at most {MAX_FILE_BYTES} without NUL")
        parts = pathlib.PurePosixPath(path).parts
        try:
            with self._inside(parts[:-1], make=True) as folder:
                try:
                    kind = os.lstat(parts[-1], dir_fd=folder).st_mode
                except FileNotFoundError:
                    if sum(1 for _ in self._walk()) >= MAX_FILES:
                        return ToolResult(text=f"error: got more than {MAX_FILES} files")
                else:
                    if stat.S_ISLNK(kind):
                        return ToolResult(text=f"error: {path[:60]!r}: wanted a relative path inside the workspace")
                    if stat.S_ISDIR(kind):
                        raise IsADirectoryError
                self._put(parts[-1], data, 0o644, folder)
        except (IsADirectoryError, FileExistsError):
            return ToolResult(text=f"error: {path[:60]}: a file and a folder share this name")
        except OSError:  # a folder of the path is a link or a file
            return ToolResult(text=f"error: {path[:60]!r}: wanted a relative path inside the workspace")
        return ToolResult(text="ok")

    def _read(self, path: str) -> ToolResult:
        text, error = self._text(path)
        return ToolResult(text=error or text[:MAX_READ_CHARACTERS])

    def _edit(self, path: str, old: str, new: str) -> ToolResult:
        return self._multi_edit(path, [{"old": old, "new": new}])

    def _multi_edit(self, path: str, edits: list[dict[str, str]]) -> ToolResult:
        text, error = self._text(path)
        if error:
            return ToolResult(text=error)
        for number, edit in enumerate(edits, 1):
            which = f"edit {number}: " if len(edits) > 1 else ""
            found = text.count(edit["old"]) if edit["old"] else 0
            if found != 1:
                return ToolResult(text=f"error: {which}old stands {found} times in {path[:60]}, wanted once; nothing was changed")
            text = text.replace(edit["old"], edit["new"])
        return self._write(path, text)

    def _glob(self, pattern: str) -> ToolResult:
        names = [path for path in self._names() if fnmatch.fnmatchcase(path, pattern) or _globs(path, pattern)]
        more = f"\n[{len(names) - MAX_HITS} more]" if len(names) > MAX_HITS else ""
        return ToolResult(text="\n".join(names[:MAX_HITS]) + more if names else f"no file matches {pattern[:60]!r}")

    def _grep(self, pattern: str, path: str = "") -> ToolResult:
        if not self._may_run():
            return ToolResult(text=_NO_SHELL.format(tool="grep"))
        # An expression can take for ever: it is matched in the sandbox, under its time limit
        quoted = [f"'{part}'" for part in (pattern.replace("'", "'\\''"), path.replace("'", "'\\''") or ".")]
        answer = self._in_shell(
            f"grep -rnIE -m {MAX_HITS} -e {quoted[0]} -- {quoted[1]} | sed 's,^\\./,,' | cut -c 1-200 | head -n {MAX_HITS}", 10
        )
        return ToolResult(text=answer["text"].rstrip("\n") or f"no line matches {pattern[:60]!r}")

    def _todo(self, items: str) -> ToolResult:
        self.todo = items[:MAX_READ_CHARACTERS]
        return ToolResult(text="ok")

    def _submit(self) -> ToolResult:
        return ToolResult(text="submitted", done=True)

    async def _ask(self, tool: str) -> ToolResult:
        before = len(self.tampered)
        self._restore()
        note = "".join(f"\nnote: {name} was changed; it is put back" for name in self.tampered[before:])
        candidate = self.candidate()
        if candidate is None:
            return ToolResult(text="error: nothing to judge; write the files first")
        verdict = self._flagged(await self.pool.judge(self.task, candidate, fresh=False), self.tampered[before:])
        return ToolResult(text=report(verdict, tool) + self._details(verdict, tool) + note, verdict=verdict)

    @staticmethod
    def _flagged(verdict: Verdict, tampered: list[str]) -> Verdict:
        """The verdict, with a flag for each fixed file that was found changed: it speaks of the episode, not of the candidate."""
        flags = tuple(f"tampered:{name}" for name in dict.fromkeys(tampered))
        return dataclasses.replace(verdict, flags=(*verdict.flags, *flags)) if flags else verdict

    def _details(self, verdict: Verdict, tool: str) -> str:
        """More lines for players that have more than the basic tools: small models know the one line alone."""
        return "" if set(self.tools) <= set(BASIC) else "".join(f"\n{line}" for line in details(verdict, tool))

    # --------------------------------------------------------------------------------------- shell

    def _bash(self, command: str, seconds: int = BASH_S // 4, background: bool = False) -> ToolResult:
        if not self._may_run():
            return ToolResult(text=_NO_SHELL.format(tool="bash"))
        if not command or "\0" in command or len(command.encode("utf-8", "replace")) > 100_000:
            return ToolResult(text="error: bash: wanted a command of 1 to 100000 bytes without NUL")
        if not 1 <= seconds <= BASH_S:
            return ToolResult(text=f"error: bash: seconds: got {seconds}, wanted 1 to {BASH_S}")
        answer = self._in_shell(command, None if background else seconds)
        if background:
            return ToolResult(text=answer.get("error") or f"{self._clock()} job {answer['job']} runs")
        ended = self._shown(answer) if answer["status"] is not None else self._shown(answer, f"ended after {seconds} s")
        if self._folder_bytes() > MAX_FOLDER_BYTES:
            self._end_shell()
            ended += f"\nerror: the workspace holds more than {MAX_FOLDER_BYTES} bytes: its processes were ended, remove files"
        return ToolResult(text=ended)

    def _output(self, job: int) -> ToolResult:
        return self._of_job("output", job)

    def _kill(self, job: int) -> ToolResult:
        return self._of_job("kill", job)

    def _of_job(self, what: str, job: int) -> ToolResult:
        if self._shell is None:
            return ToolResult(text=f"error: no job {job}; jobs: none")
        try:
            answer = getattr(self._shell, what)(job)
        except EOFError:
            self._end_shell()
            return ToolResult(text=_LOST)
        return ToolResult(text=f"error: {answer['error']}" if "error" in answer else self._shown(answer, "runs"))

    def _may_run(self) -> bool:
        if self._shell is None and self.shells is not None:
            self._shell = self.shells.open(self.folder)
            self._owner = self._shell.owner
            if self._owner is not None:
                for folder, folders, names, handle in os.fwalk(self.folder, follow_symlinks=False):
                    if len(pathlib.Path(folder).relative_to(self.folder).parts) >= MAX_DEPTH:
                        folders.clear()
                    for name in [*folders, *(set(names) - set(self.fixed))]:
                        os.chown(name, self._owner, self._owner, dir_fd=handle, follow_symlinks=False)
        return self._shell is not None

    def _in_shell(self, command: str, seconds: float | None) -> dict[str, Any]:
        try:
            return self._shell.start(command) if seconds is None else self._shell.run(command, seconds)
        except EOFError:
            self._end_shell()
            return {"error": _LOST, "status": None, "text": _LOST}

    def _shown(self, answer: dict[str, Any], otherwise: str = "") -> str:
        status = answer["status"]
        ended = otherwise if status is None else f"exit {status}" if status >= 0 else f"ended by signal {-status}"
        return f"{self._clock()} {ended}\n{answer['text']}".rstrip("\n")

    def _clock(self) -> str:
        return f"[{time.monotonic() - self._started:.1f} s]"

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """The workspace's processes stand still meanwhile."""
        shell = self._shell
        if shell is None:
            yield
            return
        try:
            shell.freeze()
        except EOFError:  # then nothing runs any more
            self._end_shell()
            yield
            return
        try:
            yield
        finally:
            with contextlib.suppress(EOFError):  # told by the next call
                shell.thaw()

    def _end_shell(self) -> None:
        shell, self._shell = getattr(self, "_shell", None), None
        if shell is not None:
            shell.close()

    # --------------------------------------------------------------------------------------- files

    def _wrong_target(self, path: str) -> str | None:
        """Why a file of this name may not be written."""
        if _bad_path(path):
            return f"error: {path[:60]!r}: wanted a relative path inside the workspace"
        if pathlib.PurePosixPath(path).as_posix() in self.fixed:
            return f"error: {path} is read-only"
        if pathlib.PurePosixPath(path).suffix not in SUFFIXES:
            return f"error: {path[:60]}: wanted a name that ends in {', '.join(SUFFIXES)}"
        return None

    def _text(self, path: str) -> tuple[str, str | None]:
        """Text of a file, or why there is none."""
        if _bad_path(path):
            return "", f"error: {path[:60]!r}: wanted a relative path inside the workspace"
        parts, text = pathlib.PurePosixPath(path).parts, None
        with contextlib.suppress(OSError), self._inside(parts[:-1]) as folder:  # no such folder, or a link
            text = _read_regular(parts[-1], folder) if parts else None
        return (text, None) if text is not None else ("", f"error: no file {path[:60]!r}; files: {', '.join(self._names())[:200]}")

    @contextlib.contextmanager
    def _inside(self, parts: tuple[str, ...], make: bool = False) -> Iterator[int]:
        """A descriptor of a folder of the workspace, reached without following a link. Raises OSError."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts:
                if make:
                    try:
                        os.mkdir(part, dir_fd=handle)
                        if self._owner is not None:
                            os.chown(part, self._owner, self._owner, dir_fd=handle, follow_symlinks=False)
                    except FileExistsError:
                        pass
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)

    def _walk(self) -> Iterator[tuple[str, str, int]]:
        """(path, name, descriptor of its folder) of everything that is no folder, by name; no link is followed."""
        seen = 0
        for folder, folders, names, handle in os.fwalk(self.folder, follow_symlinks=False):
            relative = pathlib.Path(folder).relative_to(self.folder)
            folders.sort()
            if len(relative.parts) >= MAX_DEPTH:
                folders.clear()
            for name in sorted(names):
                seen += 1
                if seen > MAX_WALK:  # a command can make any number of files
                    return
                yield (relative / name).as_posix(), name, handle

    def _names(self) -> list[str]:
        """Paths of the plain files."""
        found = []
        for path, name, handle in self._walk():
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(os.lstat(name, dir_fd=handle).st_mode):
                    found.append(path)
        return sorted(found)

    def _folder_bytes(self) -> int:
        total = 0
        for _, name, handle in self._walk():
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(name, dir_fd=handle).st_blocks * 512
        return total

    def _put(self, name: str, data: bytes, mode: int, folder: int) -> None:
        """Replace a file as a whole, whatever stood there."""
        fresh = f".{name[:100]}.{os.urandom(6).hex()}"
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(handle, mode)
            if self._owner is not None and mode & 0o200:
                os.fchown(handle, self._owner, self._owner)
        os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _restore(self) -> None:
        """Put the fixed files back where they are missing or differ."""
        with self._inside(()) as folder:
            for name, text in self.fixed.items():
                data = text.encode("utf-8", "replace")
                if _digest(name, folder, len(data)) == hashlib.sha256(data).digest():
                    continue
                self.tampered.append(name)
                with contextlib.suppress(OSError):  # a folder of that name is moved out of the way
                    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                        os.rename(name, f"{name}.{os.urandom(6).hex()}", src_dir_fd=folder, dst_dir_fd=folder)
                self._put(name, data, 0o444, folder)


_NO_SHELL = "error: {tool}: this workspace has no shell"
_LOST = "error: the shell ended; the next call starts one afresh"


def _bad_path(path: str) -> bool:
    pure = pathlib.PurePosixPath(path)
    return not path or len(path) > 120 or pure.is_absolute() or ".." in pure.parts or not re.fullmatch(r"[\w./-]+", path)


def _globs(path: str, pattern: str) -> bool:
    """`**/` stands for no folder too, as in a shell."""
    return fnmatch.fnmatchcase(path, pattern.replace("**/", "")) if "**/" in pattern else False


def _digest(name: str, folder: int, size: int) -> bytes | None:
    """SHA-256 of a plain file of this size; None for anything else."""
    data = _read_plain(name, folder, size)
    return None if data is None else hashlib.sha256(data).digest()


def _read_regular(name: str, folder: int) -> str | None:
    """Text of a plain file of sane size; None for anything else. No link is followed."""
    data = _read_plain(name, folder, MAX_FILE_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def _read_plain(name: str, folder: int, most: int) -> bytes | None:
    """Bytes of a plain file of at most `most` bytes; None for anything else."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > most:
            return None
        with os.fdopen(os.dup(handle), "rb") as file:
            data = file.read(most + 1)
        return data if len(data) <= most else None  # it grew
    finally:
        os.close(handle)


def _remove(folder: str, commands: bool) -> None:
    """Commands can nest folders deeper than a recursion goes, and paths longer than a call takes: `rm` knows how."""
    if not commands:
        shutil.rmtree(folder, ignore_errors=True)
        return
    subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


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


MAX_ERRORS = 3
_ERROR = re.compile(r"^\S+?(:\d+(:\d+)?|\(\d+\)): (fatal )?error: .*|^.*undefined reference to .*", re.MULTILINE)


def details(verdict: Verdict, tool: str) -> list[str]:
    """What a verdict says beside its `report`, in stable lines: compiler errors after the first with file and line, the end of what a crash
    printed, and for `profile` every time and what the judge knows of the limit. Addresses, which differ from run to run, are left out."""
    if verdict.status is Status.COMPILE_ERROR:
        errors = list(dict.fromkeys(found.group().strip() for found in _ERROR.finditer(verdict.log)))
        more = [_one_line(error) for error in errors if error[:300] != (verdict.reason or "").strip()]
        rest = len(more) - (MAX_ERRORS - 1)
        return more[: MAX_ERRORS - 1] + ([f"and {rest} more errors"] if rest > 0 else [])
    if verdict.status is Status.RUNTIME_ERROR and tool != "compile":
        lines = [re.sub(r"0x[0-9a-fA-F]+", "0x...", line.rstrip()) for line in verdict.log.splitlines() if line.strip()]
        return [_one_line(line) for line in lines[-MAX_ERRORS:]]
    if verdict.correct and tool == "profile":
        found = ["times: " + ", ".join(f"{name} {ms:.3g} ms" for name, ms in sorted((verdict.times_ms or {}).items()))]
        if verdict.speed_of_light is not None:
            found.append(f"speed of light: {verdict.speed_of_light:.0%}")
        if verdict.own_kernel_share is not None:
            found.append(f"own kernels: {verdict.own_kernel_share:.0%} of the time: {_one_line(', '.join(verdict.kernels))}")
        return found
    return []


_AFTER_BUILD = (Status.INCORRECT, Status.RUNTIME_ERROR, Status.TIMEOUT, Status.OUT_OF_MEMORY)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "..."
