"""The training stages' way into `policy.train.fit`: settings from params.yaml, progress into the journal, a stop that keeps the work."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from data.records import Checkpoint, Trajectory
from stages.stage import Job

SHOWN = ("loss", "pg_loss", "value_loss", "approx_kl_k3", "explained_var_mc", "reward_mean")
"""What a headline shows of a fit's last step."""


def settings(section: Any, method: str, **changes: Any):
    """The Settings of a fit: every field that the params section has, `changes` above them."""
    import dataclasses

    from policy.train import Settings

    names = {field.name for field in dataclasses.fields(Settings)}
    given = {name: value for name, value in vars(section).items() if name in names}
    return Settings(**given | {"method": method} | changes)


def fit(job: Job, trajectories: Sequence[Trajectory], wanted, *, name: str = "fit", **places: Any):
    """`policy.train.fit` in job.work/NAME, resumed where it was. Returns Fitted; its checkpoints name the published path."""
    from policy import train

    def log(metrics: dict[str, float]) -> None:
        job.record(fit=name, **metrics)
        job.progress(int(metrics["step"]), int(metrics["steps"]), f"{name} {words(metrics)}".strip())

    return train.fit(trajectories, wanted, work=job.work / name, log=log, device=job.params.machine.device, **places)


def imitate(job: Job, trajectories: Sequence[Trajectory], *, start: str, out: str, kind: str, section: Any) -> Checkpoint:
    """Learn the actions of `trajectories`; the checkpoint `out` (both paths as in dvc.yaml)."""
    method = {"sft": "sft", "rft": "rft"}[kind]
    fit(job, trajectories, settings(section, method), policy=job.root / start, out=job.out(out), kind=kind)
    return published(job, out)


def value(job: Job, trajectories: Sequence[Trajectory], *, start: str, out: str, section: Any) -> dict[str, float]:
    """Value pretraining of a critic with the backbone of `start`. Returns the last step's metrics."""
    last = fit(job, trajectories, settings(section, "value"), policy=job.root / start, critic_out=job.out(out)).metrics
    published(job, out)
    return last


def reinforce(
    job: Job,
    trajectories: Sequence[Trajectory],
    *,
    policy: pathlib.Path,
    critic: pathlib.Path | None,
    policy_out: pathlib.Path,
    critic_out: pathlib.Path,
    kind: str,
    section: Any,
    name: str = "fit",
    **changes: Any,
) -> dict[str, float]:
    """PPO (or TRLOO, as the section says) from `policy` on the episodes that it played. Returns the last step's metrics."""
    import shutil

    method = getattr(section, "algorithm", "ppo")
    places = {"policy": policy, "out": policy_out, "kind": kind, "round": job.round}
    if method == "ppo":
        places |= {"critic": critic, "critic_out": critic_out}
    last = fit(job, trajectories, settings(section, method, **changes), name=name, **places).metrics
    if method != "ppo" and critic is not None:
        # Without a critic in play the next round still finds one: this one, unchanged.
        shutil.copytree(critic, critic_out, dirs_exist_ok=True)
    return last


def published(job: Job, path: str) -> Checkpoint:
    """The record in the staged folder of `path`, its path rewritten to where it will be published."""
    import dataclasses
    import json

    from policy.model import RECORD

    file = job.out(path) / RECORD
    checkpoint = dataclasses.replace(Checkpoint.from_dict(json.loads(file.read_text(encoding="utf-8"))), path=path)
    file.write_text(json.dumps(checkpoint.to_dict(), indent=1) + "\n", encoding="utf-8")
    return checkpoint


def words(metrics: dict[str, float]) -> str:
    """The shown metrics in one line."""
    return ", ".join(f"{name} {metrics[name]:.3g}" for name in SHOWN if isinstance(metrics.get(name), (int, float)))
