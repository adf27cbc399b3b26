"""params.yaml as typed records: one frozen dataclass a section, and nothing that the file may hold beside them.

`load()` reads and checks the whole file; an unknown key, a missing key or a wrong type is a ValueError of one line with the key's
path, what was got and what was wanted. Standard library and PyYAML only. Ranges are checked where a wrong value would only show
hours later; it does not check that paths exist or that a model fits the machine.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import types
import typing
from typing import Any, Literal

import yaml


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What the machine offers. The one section that DVC does not track: it may change speed, never results."""

    device: str
    """auto, cpu, cuda or cuda:N."""
    slots: int
    """Judging slots; 0 = what the machine has."""
    sampler_batch: int
    """Sequences that the embedded sampler decodes together."""
    micro_tokens: int
    """Most tokens of a training micro-batch; a longer episode stands alone."""
    checkpointing: bool
    """Compute activations again in the backward pass: less memory, a third more time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthesize:
    count: int
    seed: int
    mix: dict[int, float]
    """Number of operators -> share of the tasks."""
    families: tuple[str, ...]
    regimes: tuple[str, ...]
    min_elements: int
    max_elements: int
    """Bounds of the elements of one input."""
    surface: Literal["varied", "plain"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Select:
    seed: int
    test: int
    """Tasks held out by operator signature for evaluation."""
    validation: int
    min_ms: float
    max_ms: float
    """Bounds of the eager time of a task, milliseconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judge:
    backend: Literal["cpp", "cuda"]
    policy: Literal["own_kernels_only", "libraries_allowed", "mixed"]
    precision: Literal["fp32", "bf16", "fp16"] | None
    """None: that of each task."""
    track: Literal["default", "tf32"]
    build_s: float
    call_s: float
    total_s: float
    calls: int
    """Checked calls of a candidate where one takes under 10 ms: the verdict's price, and the width of its interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    format: Literal["plan", "cupy", "triton", "load_inline", "load", "cuda_extension", "cpp"]
    turns: int
    new_tokens: int
    """Most sampled tokens a turn."""
    context: int
    """Most tokens of a whole episode."""
    dtype: Literal["float32", "bfloat16"]
    detail: Literal["short", "full"]
    """short: a line of instructions, for models that are trained on the task; full: tools and rules spelled out."""
    tools: Literal["basic", "all"]
    """basic: write, read, compile, verify, profile, submit; all: a shell, edits, search and a todo list too (data/tools.py)."""
    view: Literal["source", "graph"]
    """How the task is shown: its source, or its traced graph, which a model of a few million parameters can read."""
    reward: Literal["robust", "raw"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    path: str | None
    """Folder of a Hugging Face causal LM; null = a small one from scratch, with a tokenizer trained on the practice sessions."""
    family: Literal["qwen3", "llama"]
    vocab: int
    line_share: float | None
    """Whole lines in at least this share of the tokenizer's texts become one token; null = none."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    context: int
    dtype: Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What every training section says of its optimizer loop."""

    seed: int
    epochs: float
    batch: int
    """Episodes an optimizer step."""
    lr: float
    lora_rank: int | None
    """Train adapters of this rank alone (needs the extra `lora`); null = every weight."""
    zero_stage: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """Options of the policy and value losses; null or 0 = off. Meanings and formulas: policy.train.Settings, policy/loss.py."""

    dual_clip: float | None
    value_clip: float | None
    kl: Literal["k1", "k2", "k3"] | None
    """Estimator of the KL to the warm-started policy (sft)."""
    kl_coef: float
    positive_coef: float
    """Of the language-model loss on episodes of at least min_reward."""
    tis_cap: float | None
    mrs_band: tuple[float, ...] | None
    mrs_veto: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """Where an epoch (kl_stop) or the whole update (the others) ends early; null = never."""

    kl_stop: float | None
    diverged_kl: float | None
    diverged_entropy: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reinforcement(Training):
    """What an update from played episodes is told beside it; its epochs are whole."""

    algorithm: Literal["ppo", "trloo", "rft"]
    """PPO with a critic, the leave-one-out baseline of a task's samples without one, or rejection fine-tuning."""
    min_reward: float
    """Least reward of an episode that rft learns, or that counts as positive for loss.positive_coef."""
    epochs: int
    critic_lr: float
    clip_low: float
    clip_high: float
    reuse: int
    """Rounds (or iterations) whose episodes are learned once more beside this one's; what another policy sampled needs loss.tis_cap."""
    loss: Loss
    bounds: Bounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStart(Training):
    practice: int
    """Tasks made for teacher sessions beside the train split; none has a held-out signature."""
    sessions: int
    """First turns that the teacher writes a practice task, unjudged."""
    judged: int
    """Teacher sessions a train task, judged for real."""
    repeat: int
    """How often the judged sessions stand among an epoch's rows: they alone show what follows a verdict."""
    mistakes: float
    """Share of judged sessions that begin with a planted mistake and go on with its repair."""
    warmup: int
    decay: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleTurn(Reinforcement):
    iterations: int
    tasks: int
    """Train tasks drawn an iteration."""
    samples: int
    draw: Literal["uniform", "variance"]
    floor: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collect:
    seed: int
    tasks: int
    """Train tasks played; 0 = all."""
    samples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rft(Training):
    min_reward: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Critic(Training):
    """Value pretraining."""

    gamma: float
    lam_critic: float
    """Of the value targets; 1 = Monte-Carlo returns, 0.95 with unit token = the paper's."""
    unit: Literal["token", "turn"]
    plateau: float | None
    """Ends when an epoch raises explained_var_mc by less; null = never."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    seed: int
    tasks: int
    """Train tasks played a round; 0 = all."""
    samples: int
    draw: Literal["uniform", "variance"]
    """All tasks alike, or by the variance of a task's rewards when last played."""
    floor: float
    """Least variance that a task is drawn with, also that of a task not yet played."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update(Reinforcement):
    gamma: float
    lam: float
    """Of the policy's advantages."""
    lam_critic: float
    """Of the value targets."""
    adaptive_alpha: float | None
    """Length-adaptive lambda in place of lam: 1 - 1 / (alpha * action tokens); null = lam."""
    unit: Literal["token", "turn"]
    """What gamma and both lambdas count."""
    whiten: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    prev: str
    """Checkpoint that plays and is updated in this round: rft, or an earlier round."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    checkpoints: tuple[str, ...]
    split: Literal["train", "validation", "test"]
    tasks: int
    """Tasks of the split that are played; 0 = all."""
    samples: int
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    split: Literal["train", "validation", "test"]
    samples: int
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    title: str
    failures: int
    """Failed episodes shown in full."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    machine: Machine
    synthesize: Synthesize
    select: Select
    judge: Judge
    episode: Episode
    model: Model
    warm_start: WarmStart
    single_turn: SingleTurn
    collect: Collect
    rft: Rft
    critic: Critic
    rollout: Rollout
    update: Update
    rounds: dict[str, Round]
    evaluate: Evaluate
    teacher: Teacher
    report: Report


FIXED = ("base", "sft", "single_turn", "rft")
"""Checkpoints that are there before the first round."""


def load(path: str | pathlib.Path = "params.yaml") -> Params:
    """The checked file. Raises ValueError with one line that names the file and the key."""
    try:
        raw = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: got {error.strerror or error}, wanted a readable file") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: got text that is no YAML ({' '.join(str(error).split())}), wanted YAML") from error
    params = _convert(Params, raw, str(path))
    _check(params, str(path))
    return params


def _fail(key: str, got: Any, wanted: str) -> typing.NoReturn:
    raise ValueError(f"{key}: got {got!r}, wanted {wanted}")


def _convert(hint: Any, value: Any, key: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _convert_section(hint, value, key)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(next(a for a in args if a is not type(None)), value, key)
    if origin is Literal:
        return value if value in args else _fail(key, value, " or ".join(map(str, args)))
    if origin is tuple:
        return tuple(_convert(args[0], v, f"{key}[{i}]") for i, v in enumerate(value)) if isinstance(value, list) else _fail(key, value, "a list")
    if origin is dict:
        if not isinstance(value, dict):
            _fail(key, value, "a mapping")
        return {_convert(args[0], k, f"{key} (a key)"): _convert(args[1], v, f"{key}.{k}") for k, v in value.items()}
    if hint is float:
        # YAML 1.1 as PyYAML reads it takes 1e-5 for a string.
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                _fail(key, value, "a number")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            _fail(key, value, "a finite number")
        return float(value)
    wanted = {int: "a whole number", str: "text", bool: "true or false"}[hint]
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        _fail(key, value, wanted)
    return value


def _convert_section(hint: type, value: Any, key: str) -> Any:
    names = [f.name for f in dataclasses.fields(hint)]
    if not isinstance(value, dict):
        _fail(key, value, f"a mapping with the keys {', '.join(names)}")
    for unknown in sorted(set(map(str, value)) - set(names)):
        _fail(f"{key}: {unknown}" if hint is Params else f"{key}.{unknown}", value.get(unknown, unknown), f"only the keys {', '.join(names)}")
    hints = typing.get_type_hints(hint)
    found = {}
    for name in names:
        path = f"{key}: {name}" if hint is Params else f"{key}.{name}"
        if name not in value:
            raise ValueError(f"{path}: got nothing, wanted a value")
        found[name] = _convert(hints[name], value[name], path)
    return hint(**found)


RANGES: dict[str, tuple[Any, str]] = {
    "gamma": (lambda v: v <= 1, "0 to 1"),
    "lam": (lambda v: v <= 1, "0 to 1"),
    "lam_critic": (lambda v: v <= 1, "0 to 1"),
    "adaptive_alpha": (lambda v: v > 0, "more than zero"),
    "clip_low": (lambda v: 0 < v < 1, "more than 0 and less than 1"),
    "clip_high": (lambda v: v > 0, "more than zero"),
    "dual_clip": (lambda v: v > 1, "more than 1"),
    "value_clip": (lambda v: v > 0, "more than zero"),
    "tis_cap": (lambda v: v >= 1, "1 or more"),
    "mrs_band": (lambda v: len(v) == 2 and 0 < v[0] <= 1 <= v[1], "two bounds around 1"),
    "mrs_veto": (lambda v: v < 1, "less than 1"),
    "kl_stop": (lambda v: v > 0, "more than zero"),
    "diverged_kl": (lambda v: v > 0, "more than zero"),
    "diverged_entropy": (lambda v: v > 1, "more than 1"),
    "floor": (lambda v: v > 0, "more than zero: else a task that was never mixed is never played again"),
    "micro_tokens": (lambda v: v >= 1, "1 or more"),
    "lora_rank": (lambda v: v >= 1, "1 or more"),
    "epochs": (lambda v: v > 0, "more than zero"),
    "batch": (lambda v: v >= 1, "1 or more"),
    "calls": (lambda v: v >= 24, "24 or more: half of them are on other distributions and are not timed"),
    "zero_stage": (lambda v: v <= 3, "0, 1, 2 or 3"),
}
"""What a value must be beside its type and beside zero or more, by the key's name; null is not looked at."""


def _check_ranges(record: Any, key: str) -> None:
    for field in dataclasses.fields(record):
        value, name = getattr(record, field.name), f"{key}.{field.name}"
        if dataclasses.is_dataclass(value):
            _check_ranges(value, name)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0 and field.name != "min_reward":
            _fail(name, value, "zero or more")
        elif value is not None and field.name in RANGES and not RANGES[field.name][0](value):
            _fail(name, list(value) if isinstance(value, tuple) else value, RANGES[field.name][1])


def _check(params: Params, path: str) -> None:
    """Ranges, and the names that rounds and evaluate give to checkpoints."""
    for section in dataclasses.fields(params):
        record = getattr(params, section.name)
        if dataclasses.is_dataclass(record):
            _check_ranges(record, f"{path}: {section.name}")
    for section, field in (("episode", "turns"), ("episode", "new_tokens"), ("synthesize", "count"), ("evaluate", "samples"), ("rollout", "samples")):
        if getattr(getattr(params, section), field) < 1:
            _fail(f"{path}: {section}.{field}", 0, "one or more")
    for section in ("single_turn", "update"):
        given = getattr(params, section).loss
        if getattr(params, section).reuse and given.tis_cap is None and getattr(params, section).algorithm != "rft":
            _fail(f"{path}: {section}.loss.tis_cap", None, f"a number: {section}.reuse learns from what earlier policies sampled")
        if (given.kl is None) != (given.kl_coef == 0):
            _fail(f"{path}: {section}.loss.kl_coef", given.kl_coef, f"{'0' if given.kl is None else 'more than zero'} where loss.kl is {given.kl or 'null'}")
    if abs(sum(params.synthesize.mix.values()) - 1) > 1e-6:
        _fail(f"{path}: synthesize.mix", params.synthesize.mix, "shares that add up to 1")
    if params.model.path is None and params.model.hidden % params.model.heads:
        _fail(f"{path}: model.hidden", params.model.hidden, f"a multiple of model.heads ({params.model.heads})")
    known: list[str] = ["rft"]
    for name, item in params.rounds.items():
        if not name.startswith("r") or not name[1:].isdigit():
            _fail(f"{path}: rounds.{name}", name, "a name like r01")
        if item.prev not in known:
            _fail(f"{path}: rounds.{name}.prev", item.prev, " or ".join(known))
        known.append(name)
    for index, name in enumerate(params.evaluate.checkpoints):
        if name not in (*FIXED, *params.rounds):
            _fail(f"{path}: evaluate.checkpoints[{index}]", name, " or ".join((*FIXED, *params.rounds)))
    missing = [name for name in params.rounds if name not in params.evaluate.checkpoints]
    if missing:
        _fail(f"{path}: evaluate.checkpoints", list(params.evaluate.checkpoints), f"every round in it, so also {', '.join(missing)}")


def main() -> None:
    """`python -m stages.params [FILE]`: check a file; one line and exit 2 when something is wrong."""
    import argparse
    import sys

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", nargs="?", default="params.yaml")
    path = parser.parse_args().file
    try:
        load(path)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
