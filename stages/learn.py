"""The training stages' way into `policy.train.fit`: settings from params.yaml, progress into the journal, a stop that keeps the work."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from data.records import Checkpoint, Trajectory
from stages.stage import Job

SHOWN = ("loss", "pg_loss", "value_loss", "approx_kl_k3", "explained_var_mc", "reward_mean")
"""What a headline shows of a fit's last step."""
REPLAY = "replay"
"""Folder in a round's critic that carries the rollouts which later rounds may learn from once more."""


def settings(job: Job, section: Any, method: str, **changes: Any):
    """The Settings of a fit: the machine's, every field that the params section or a record in it has, `changes` above them."""
    from policy.train import Settings

    names = {field.name for field in dataclasses.fields(Settings)}
    parts = [section, *(value for value in vars(section).values() if dataclasses.is_dataclass(value))]
    machine = {"tokens": job.params.machine.micro_tokens, "checkpointing": job.params.machine.checkpointing}
    given = machine | {name: value for part in parts for name, value in vars(part).items() if name in names}
    return Settings(**given | {"method": method} | changes)


def fit(job: Job, trajectories: Sequence[Trajectory], wanted, *, name: str = "fit", **places: Any):
    """`policy.train.fit` in job.work/NAME, resumed where it was. Returns Fitted; its checkpoints name the published path."""
    from policy import train

    def log(metrics: dict[str, float]) -> None:
        job.record(fit=name, **metrics)
        job.progress(int(metrics["step"]), int(metrics["steps"]), f"{name} {words(metrics)}".strip())

    def tell(line: str) -> None:
        print(f"{job.name}: {line}", flush=True)

    try:
        return train.fit(trajectories, wanted, work=job.work / name, log=log, tell=tell, device=job.params.machine.device, **places)
    except FloatingPointError as error:
        raise ValueError(f"{name}: {error} (a lower lr, or a bound under bounds, may keep it finite)") from error


def imitate(job: Job, trajectories: Sequence[Trajectory], *, start: str, out: str, kind: str, section: Any) -> Checkpoint:
    """Learn the actions of `trajectories`; the checkpoint `out` (both paths as in dvc.yaml)."""
    method = {"sft": "sft", "rft": "rft"}[kind]
    fit(job, trajectories, settings(job, section, method), policy=job.root / start, out=job.out(out), kind=kind)
    return published(job, out)


def value(job: Job, trajectories: Sequence[Trajectory], *, start: str, out: str, section: Any) -> dict[str, float]:
    """Value pretraining of a critic with the backbone of `start`. Returns the last step's metrics."""
    fitted = fit(job, trajectories, settings(job, section, "value"), policy=job.root / start, critic_out=job.out(out))
    published(job, out)
    write_credit(fitted.credit, job.out(out))
    return fitted.metrics


def reinforce(
    job: Job,
    trajectories: Sequence[Trajectory],
    *,
    policy: pathlib.Path,
    critic: pathlib.Path | None,
    reference: pathlib.Path,
    policy_out: pathlib.Path,
    critic_out: pathlib.Path,
    kind: str,
    section: Any,
    name: str = "fit",
    **changes: Any,
):
    """One update of `policy` by the section's algorithm on the episodes that it played. Returns Fitted.

    ppo: clipped surrogate with a critic. trloo: the same loss on leave-one-out advantages. rft: likelihood of the episodes that pass
    `rejected`. The last two build no critic: the one given is carried along unchanged, so that a later round finds it.
    reference: folder of the policy that loss.kl measures the distance to. Raises ValueError when there is nothing to learn from.
    """
    method, chosen, counts = section.algorithm, list(trajectories), {}
    if method == "rft":
        chosen, _ = accepted(trajectories, section.min_reward)
        counts = {"kept": float(len(chosen)), "played": float(len(trajectories))}
    places = {"policy": policy, "out": policy_out, "kind": kind, "round": job.round, "reference": reference}
    if method == "ppo":
        places |= {"critic": critic, "critic_out": critic_out}
    fitted = fit(job, chosen, settings(job, section, method, **changes), name=name, **places)
    if method != "ppo" and critic is not None:
        shutil.copytree(critic, critic_out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(REPLAY, "credit.parquet"))
    return dataclasses.replace(fitted, metrics=fitted.metrics | counts)


def write_credit(rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> None:
    """FOLDER/credit.parquet: a row a turn (`policy.train._credit`), to be joined with the turns of the trajectories by (trajectory, turn)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts, numbers = ("turn", "n_action", "n_plan", "n_code"), ("return", "value", "value_code", "advantage", "logp", "sampled_logp")
    kinds = dict.fromkeys(("trajectory", "task", "checkpoint"), pa.string()) | dict.fromkeys(counts, pa.int32()) | dict.fromkeys(numbers, pa.float64())
    pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(kinds.items())), folder / "credit.parquet", compression="zstd", compression_level=3)


def rejected(trajectory: Trajectory, min_reward: float) -> str | None:
    """The name of the first rule that drops the trajectory from imitation, or None when it is to be learned.

    The outcome filter wants a reward; the pattern filter drops episodes with a broken or pointless course, so that the model does not
    learn to repeat itself, to talk past the tools, or to be cut off (CUDA Agent, arXiv 2602.24286).
    """
    from policy.prompt import MALFORMED

    if trajectory.reward is None:
        return "lost"
    if trajectory.reward < min_reward:
        return "outcome"
    # Who has one turn only cannot submit what it has not seen verified
    if trajectory.stop != "done" and not (trajectory.stop == "max_turns" and len(trajectory.turns) == 1):
        return "not_submitted"
    if any(turn.finish_reason == "length" for turn in trajectory.turns):
        return "cut_off"
    if any(not turn.tool_calls or any(call.tool == MALFORMED for call in turn.tool_calls) for turn in trajectory.turns):
        return "malformed"
    actions = [turn.text for turn in trajectory.turns]
    if len(set(actions)) < len(actions):
        return "repeats_itself"
    return None


def accepted(trajectories: Sequence[Trajectory], min_reward: float) -> tuple[list[Trajectory], dict[str, int]]:
    """(those to be learned, how many each rule dropped). Raises ValueError when none is left."""
    why = {t.id: rejected(t, min_reward) for t in trajectories}
    kept = [t for t in trajectories if why[t.id] is None]
    dropped = dict(collections.Counter(rule for rule in why.values() if rule).most_common())
    if not kept:
        raise ValueError(f"min_reward: got {min_reward}, which none of {len(trajectories)} trajectories passes ({dropped}), wanted a lower one")
    return kept, dropped


def published(job: Job, path: str) -> Checkpoint:
    """The record in the staged folder of `path`, its path rewritten to where it will be published."""
    from policy.model import RECORD

    file = job.out(path) / RECORD
    checkpoint = dataclasses.replace(Checkpoint.from_dict(json.loads(file.read_text(encoding="utf-8"))), path=path)
    file.write_text(json.dumps(checkpoint.to_dict(), indent=1) + "\n", encoding="utf-8")
    return checkpoint


def words(metrics: dict[str, float]) -> str:
    """The shown metrics in one line."""
    return ", ".join(f"{name} {metrics[name]:.3g}" for name in SHOWN if isinstance(metrics.get(name), (int, float)))
