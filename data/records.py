"""The six nouns: a Checkpoint plays a Task and leaves a Trajectory of Turns; each Turn holds a Candidate and its Verdict.

Frozen, keyword-only, standard library only. Identity is content: what is measured later (baselines, split, path, times)
never changes an id. Every record becomes plain JSON with `to_dict` and comes back with `from_dict`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import pathlib
import typing
import uuid
from typing import Any, Protocol

BACKENDS = ("cpp", "cuda")
FORMATS = ("plan", "cupy", "triton", "load_inline", "load", "cuda_extension", "cpp")
POLICIES = ("own_kernels_only", "libraries_allowed", "mixed")
PRECISIONS = ("fp32", "bf16", "fp16")
TRACKS = ("default", "tf32")
KINDS = ("base", "sft", "single_turn", "rft", "critic", "ppo")
STOPS = ("done", "max_turns", "context", "infra_error")


class SandboxError(RuntimeError):
    """We failed, not the candidate: no GPU, no disk, a lost worker. Retried once, then the trajectory is left out and counted."""


class Status(enum.StrEnum):
    """What a Verdict says of a candidate; `task_invalid` alone speaks of the task."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    REJECTED = "rejected"
    FORMAT_ERROR = "format_error"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    TASK_INVALID = "task_invalid"


def content_id(*parts: Any) -> str:
    """Sixteen hex digits of the SHA-256 of `parts` as canonical JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _want(condition: bool, field: str, got: Any, wanted: str) -> None:
    if not condition:
        raise ValueError(f"{field}: got {got!r}, wanted {wanted}")


class Record:
    """JSON round trip for the dataclasses below."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars; the id included where the record has one."""
        plain = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain | ({"id": self.id} if hasattr(self, "id") else {})

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> typing.Self:
        """Inverse of `to_dict`; unknown keys raise ValueError."""
        hints = typing.get_type_hints(cls)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        unknown = set(plain) - set(fields) - {"id"}
        _want(not unknown, cls.__name__, sorted(unknown), f"only {sorted(fields)}")
        return cls(**{name: _revive(hints[name], value) for name, value in plain.items() if name in fields})


def _revive(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    options = [hint, *typing.get_args(hint)]
    for option in options:
        if isinstance(option, type) and issubclass(option, Record) and isinstance(value, dict):
            return option.from_dict(value)
        if isinstance(option, type) and issubclass(option, enum.Enum):
            return option(value)
    if isinstance(value, list) and any(o is tuple or typing.get_origin(o) is tuple for o in options):
        inner = next((typing.get_args(o)[0] for o in options if typing.get_origin(o) is tuple), Any)
        return tuple(_revive(inner, item) for item in value)
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baselines(Record):
    """Reference times of a task on one machine, through the same protocol as a candidate's. Milliseconds."""

    eager_ms: float
    compile_ms: float | None
    environment: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(Record):
    """KernelBench's contract: source with `Model(nn.Module)`, `get_inputs()`, `get_init_inputs()`.

    Example: Task(source="import torch...", origin="synthetic", operators=("relu", "sum"), split="train")
    """

    source: str
    origin: str
    """"synthetic", "user", or "kernelbench/LEVEL/PROBLEM"."""
    operators: tuple[str, ...] = ()
    """The traced operators in order: the operator signature."""
    mode: str = "eval"
    precision: str = "fp32"
    split: str | None = None
    """train, validation or test."""
    regime: str | None = None
    """Name of the shape regime, for example "many_short_rows"."""
    baselines: Baselines | None = None
    floor_ms: float | None = None
    """Least time for the bytes that the output depends on; None where not measured."""

    def __post_init__(self):
        _want(self.mode in ("eval", "train"), "mode", self.mode, "eval or train")
        _want(self.precision in PRECISIONS, "precision", self.precision, " or ".join(PRECISIONS))
        _want(self.split in (None, "train", "validation", "test"), "split", self.split, "train, validation or test")

    @property
    def id(self) -> str:
        return content_id(self.source, self.mode, self.precision)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate(Record):
    """A workspace folder as text; a single file is `{"model_new.py": ...}`."""

    format: str
    files: dict[str, str]

    def __post_init__(self):
        _want(self.format in FORMATS, "format", self.format, " or ".join(FORMATS))
        for name in self.files:
            path = pathlib.PurePosixPath(name)
            _want(bool(name) and not path.is_absolute() and ".." not in path.parts, "file name", name, "a relative path without '..'")

    @property
    def id(self) -> str:
        return content_id(self.format, self.files)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict(Record):
    """What the judge found. The status decides which fields may exist; the constructor checks it.

    `times_ms` and `device_ms` map candidate, eager, compile to milliseconds; `speedup` maps eager, compile to
    (low, median, high) of a 95 % interval, or None below the clock's resolution.
    """

    status: Status
    reason: str | None = None
    """The first difference or error in one line; None when correct."""
    rule: str | None = None
    """The broken rule when rejected; "stress" when only the stress inputs fail."""
    flags: tuple[str, ...] = ()
    task: str
    candidate: str
    backend: str
    policy: str
    precision: str = "fp32"
    track: str = "default"
    times_ms: dict[str, float] | None = None
    device_ms: dict[str, float] | None = None
    speedup: dict[str, tuple[float, float, float]] | None = None
    own_kernel_share: float | None = None
    kernels: tuple[str, ...] = ()
    speed_of_light: float | None = None
    stages_s: dict[str, float] = dataclasses.field(default_factory=dict)
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    log: str = ""
    verdict: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex[:16])

    def __post_init__(self):
        object.__setattr__(self, "status", Status(self.status))
        correct = self.status is Status.CORRECT
        _want(self.backend in BACKENDS, "backend", self.backend, " or ".join(BACKENDS))
        _want(self.policy in POLICIES, "policy", self.policy, " or ".join(POLICIES))
        _want(self.track in TRACKS, "track", self.track, " or ".join(TRACKS))
        _want(correct == (self.times_ms is not None), "times_ms", self.times_ms, "times exactly when correct")
        _want(correct or (self.speedup is None and self.device_ms is None), "speedup", self.speedup, "nothing unless correct")
        _want(correct == (self.reason is None), "reason", self.reason, "a reason exactly when not correct")
        _want(self.rule is not None or self.status is not Status.REJECTED, "rule", self.rule, "the broken rule of a rejected candidate")
        for name, value in (self.times_ms or {}).items():
            _want(math.isfinite(value) and value > 0, f"times_ms[{name}]", value, "a positive finite time")
        for name, interval in (self.speedup or {}).items():
            _want(len(interval) == 3 and 0 < interval[0] <= interval[1] <= interval[2] < math.inf, f"speedup[{name}]", interval, "0 < low <= median <= high")
        if self.speedup is not None:
            object.__setattr__(self, "speedup", {k: tuple(v) for k, v in self.speedup.items()})

    @property
    def id(self) -> str:
        """Fresh for every judgement: two verdicts on the same files are two facts."""
        return self.verdict

    @property
    def correct(self) -> bool:
        return self.status is Status.CORRECT

    def faster_than(self, baseline: str, margin: float = 0.0) -> bool:
        """True when the low end of the interval against `baseline` (eager, compile) is above 1 / (1 - margin)."""
        return bool(self.speedup and baseline in self.speedup and self.speedup[baseline][0] > 1.0 / (1.0 - margin))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall(Record):
    """One parsed call of the agent, for example ToolCall(tool="write", args={"path": ..., "content": ...})."""

    tool: str
    args: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn(Record):
    """One action of the agent and the observation that answers it. A = action tokens, O = observation tokens."""

    index: int
    prompt_ids: tuple[int, ...] = ()
    """[P] tokens that precede the action and are no part of an earlier turn: the opening prompt at index 0, else empty."""
    action_ids: tuple[int, ...] = ()
    """[A] sampled tokens, the end-of-turn token included when the model sampled it."""
    action_logprobs: tuple[float, ...] | None = None
    """[A] log-probabilities under the sampling policy; None from players that give none."""
    observation_ids: tuple[int, ...] = ()
    """[O] tokens appended after the action; inserted end-of-turn tokens are here."""
    text: str = ""
    observation: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    candidate: Candidate | None = None
    verdict: Verdict | None = None
    policy_version: str | None = None
    finish_reason: str | None = None
    """stop or length."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Times by part: generate, tools, judge."""
    trainable: bool = True
    """False where the action is a planted mistake: no loss falls on it."""

    def __post_init__(self):
        if self.action_logprobs is not None:
            _want(len(self.action_logprobs) == len(self.action_ids), "action_logprobs", len(self.action_logprobs), f"{len(self.action_ids)} values")
            _want(all(map(math.isfinite, self.action_logprobs)), "action_logprobs", "a value that is not finite", "finite values")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectory(Record):
    """One episode. Token ids of the whole: prompt_ids, then action_ids and observation_ids turn by turn."""

    task: str
    checkpoint: str
    stage: str
    round: int
    sample: int
    turns: tuple[Turn, ...]
    stop: str
    verdict: Verdict | None = None
    """The scored verdict: the submitted candidate, else what stood in the workspace, judged afresh."""
    candidate: Candidate | None = None
    reward: float | None = None
    """None: left out of loss and statistics (task_invalid, infra_error)."""
    error: str | None = None
    """The SandboxError's text when stop is infra_error."""

    def __post_init__(self):
        _want(self.stop in STOPS, "stop", self.stop, " or ".join(STOPS))
        _want([t.index for t in self.turns] == list(range(len(self.turns))), "turns", [t.index for t in self.turns], "indices 0, 1, 2, ...")
        _want(self.stop != "infra_error" or self.reward is None, "reward", self.reward, "None after infra_error")

    @property
    def id(self) -> str:
        return content_id(self.task, self.checkpoint, self.stage, self.round, self.sample)

    def turn_id(self, index: int) -> str:
        return content_id(self.id, index)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint(Record):
    """A model folder on disk. `weights` is the SHA-256 over its weight files and is the identity."""

    weights: str
    parent: str | None
    kind: str
    round: int
    path: str
    tokenizer: str
    """SHA-256 of tokenizer.json."""
    template: str
    """SHA-256 of the chat template."""

    def __post_init__(self):
        _want(self.kind in KINDS, "kind", self.kind, " or ".join(KINDS))

    @property
    def id(self) -> str:
        return self.weights[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolResult(Record):
    """What a tool gives back: the observation's text, and the verdict when the tool asked the judge."""

    text: str
    verdict: Verdict | None = None
    done: bool = False
    """True after `submit`: the episode ends."""


class Workspace(Protocol):
    """The agent's side of a sandbox, as an episode sees it."""

    task: Task

    async def run(self, tool: str, args: dict[str, Any]) -> ToolResult:
        """Run one tool; a malformed call is a ToolResult that says so. Raises SandboxError."""

    def candidate(self) -> Candidate | None:
        """Snapshot of what stands in the workspace (or was submitted); None without any kernel file."""

    async def judge(self) -> Verdict:
        """The scored judgement: fresh, uncached. Raises SandboxError."""
