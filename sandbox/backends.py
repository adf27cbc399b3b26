"""What a backend is: one file that brings candidates of one kind of machine to a verdict.

The judge process of a slot loads a backend by name and calls it from one thread. Everything here is trusted; what runs
candidate code is the backend's own untrusted child. `cpp` is the example; a new backend is one new file and one row in `FILES`.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Protocol

from data.records import Candidate, Record, Status, Task

FILES = {"cpp": "sandbox.cpp", "cuda": "sandbox.cuda"}

PREPARED, ROOM = {"cpp": 16}, 4
"""Tasks that a judge process keeps ready, by backend: a server of the reference each, which on a GPU is a context. Elsewhere, and where their
questions are large (BANK_BYTES of sandbox/oracle.py each), ROOM."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits(Record):
    """What one candidate may use. Seconds, bytes, counts."""

    build_s: float = 60.0
    call_s: float = 10.0
    compile_s: float = 300.0
    """For the first call of torch.compile's baseline; 0: no such baseline is measured."""
    total_s: float = 120.0
    memory_bytes: int = 4 << 30
    processes: int = 64
    threads: int = 1
    """CPU threads of reference and candidate alike."""
    calls: int = 64
    """Least number of checked calls where one takes under 10 ms."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement(Record):
    """What is known of a task with no candidate alive. Times in milliseconds, None when `invalid`."""

    eager_ms: float | None = None
    compile_ms: float | None = None
    floor_ms: float | None = None
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    invalid: str | None = None
    """Why the task cannot be judged, or None."""
    controls: dict[str, bool] = dataclasses.field(default_factory=dict)
    """True where the control was seen through (zeros, constant, copy) or held (repeatable)."""
    output_bytes: int = 0
    input_bytes: int = 0


class TaskInvalid(Exception):
    """The reference fails, is random, degenerate or does not fit: a fact about the task, found with no candidate alive."""


class Failed(Exception):
    """The candidate's own failure, with the status that the verdict gets."""

    def __init__(self, status: Status, reason: str, *, rule: str | None = None, flags: tuple[str, ...] = (), log: str = ""):
        super().__init__(reason)
        self.status, self.reason, self.rule, self.flags, self.log = Status(status), reason, rule, flags, log


@dataclasses.dataclass(kw_only=True)
class Found:
    """A correct candidate's figures: the fields of Verdict with the same names."""

    times_ms: dict[str, float]
    speedup: dict[str, tuple[float, float, float]] | None
    device_ms: dict[str, float] | None = None
    flags: tuple[str, ...] = ()
    own_kernel_share: float | None = None
    kernels: tuple[str, ...] = ()
    speed_of_light: float | None = None
    log: str = ""


class Backend(Protocol):
    """One object for the life of a judge process. SandboxError from any method means that we failed."""

    name: str

    def environment(self) -> dict[str, Any]:
        """Machine, library versions, isolation: recorded in every verdict; must not depend on task or candidate."""

    def prepare(self, task: Task, *, limits: Limits, precision: str, track: str) -> Any:
        """Reference, oracle and baselines of a task, no candidate alive. Kept and handed to `judge` for every candidate.

        Raises TaskInvalid.
        """

    def check(self, candidate: Candidate, *, policy: str) -> None:
        """Static check of formats and policy. Raises Failed (format_error, rejected)."""

    def build(self, candidate: Candidate, *, limits: Limits) -> Any:
        """Build product for `judge`, cached by content, failures too. Raises Failed (compile_error, compile_timeout)."""

    def judge(self, prepared: Any, candidate: Candidate, built: Any, *, policy: str) -> Found:
        """Run, check and time one candidate. Raises Failed for everything that is its fault."""

    def measure(self, prepared: Any, *, worth: tuple[float, float] | None = None) -> Measurement:
        """Preflight controls and baselines of a prepared task. Where eager takes less or more than `worth` (ms) compile_ms may be None."""

    def release(self, prepared: Any) -> None:
        """Let go of a prepared task's processes and memory."""


def slots(name: str) -> list[str]:
    """Lease names of this machine for a backend: one a core (cpp) or one a GPU (cuda). Imports no torch.

    A backend's file may define `slots() -> list[str]` and `zygote_imports: tuple[str, ...]`, both read without torch.
    """
    return importlib.import_module(FILES[name]).slots()


def load(name: str) -> Backend:
    """The backend's object: `BACKEND()` of its file. Raises ValueError for an unknown name."""
    if name not in FILES:
        raise ValueError(f"backend: got {name!r}, wanted {' or '.join(FILES)}")
    return importlib.import_module(FILES[name]).BACKEND()
