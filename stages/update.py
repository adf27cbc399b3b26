"""The second half of a round: PPO, TRLOO or rejection fine-tuning on its rollout. Policy and critic go on from the previous checkpoint."""

from __future__ import annotations

import pathlib
import shutil

from stages import learn
from stages.stage import Job, main


def run(job: Job) -> None:
    from data.store import read_trajectories
    from policy import curriculum

    section, prev = job.params.update, job.params.round.prev
    rollout = job.root / f"artifacts/trajectories/rollout-{job.key}"
    played, earlier = read_trajectories(rollout), replay(job.root / f"artifacts/critics/{prev}", section.reuse)
    learned = played + [t for folder in earlier for t in read_trajectories(folder)]
    fitted = learn.reinforce(
        job, learned, policy=job.root / f"artifacts/checkpoints/{prev}", critic=job.root / f"artifacts/critics/{prev}",
        reference=job.root / "artifacts/checkpoints/sft", policy_out=job.out(f"artifacts/checkpoints/{job.key}"), critic_out=job.out(f"artifacts/critics/{job.key}"),
        kind="ppo", section=section, seed=section.seed + job.round,
    )
    for out in (f"artifacts/checkpoints/{job.key}", f"artifacts/critics/{job.key}"):
        learn.published(job, out)
    for folder in [*earlier, rollout][-section.reuse :] if section.reuse else ():
        shutil.copytree(folder, job.out(f"artifacts/critics/{job.key}/{learn.REPLAY}/{folder.name}"), dirs_exist_ok=True)
    learn.write_credit(fitted.credit, job.out(f"artifacts/critics/{job.key}"))
    history = curriculum.remember(curriculum.load(job.root / f"artifacts/checkpoints/{prev}"), played)
    curriculum.save(history, job.out(f"artifacts/checkpoints/{job.key}"))
    again = f", {len(learned) - len(played)} of earlier rounds" if earlier else ""
    ended = f"; ended early: {fitted.ended}" if fitted.ended else ""
    headline = f"{len(learned)} episodes{again}, {learn.words(fitted.metrics)}{ended}"
    job.summary = {"headline": headline, "figures": fitted.metrics, "ended": fitted.ended}


def replay(critic: pathlib.Path, rounds: int) -> list[pathlib.Path]:
    """The rollouts of the last `rounds` rounds, oldest first, that the critic's folder carries: so a round depends on its predecessor alone."""
    return sorted((critic / learn.REPLAY).glob("rollout-r*"), key=lambda folder: int(folder.name.removeprefix("rollout-r")))[-rounds:] if rounds else []


if __name__ == "__main__":
    main(__file__, run, option="round")
