"""The second half of a round: PPO, TRLOO or rejection fine-tuning on its rollout. Policy and critic go on from the previous checkpoint."""

from __future__ import annotations

from stages import learn
from stages.stage import Job, main


def run(job: Job) -> None:
    from data.store import read_trajectories
    from policy import curriculum

    section, prev = job.params.update, job.params.round.prev
    played = read_trajectories(job.root / f"artifacts/trajectories/rollout-{job.key}")
    fitted = learn.reinforce(
        job, played, policy=job.root / f"artifacts/checkpoints/{prev}", critic=job.root / f"artifacts/critics/{prev}",
        reference=job.root / "artifacts/checkpoints/sft", policy_out=job.out(f"artifacts/checkpoints/{job.key}"), critic_out=job.out(f"artifacts/critics/{job.key}"),
        kind="ppo", section=section, seed=section.seed + job.round,
    )
    for out in (f"artifacts/checkpoints/{job.key}", f"artifacts/critics/{job.key}"):
        learn.published(job, out)
    history = curriculum.remember(curriculum.load(job.root / f"artifacts/checkpoints/{prev}"), played)
    curriculum.save(history, job.out(f"artifacts/checkpoints/{job.key}"))
    ended = f"; ended early: {fitted.ended}" if fitted.ended else ""
    job.summary = {"headline": f"{len(played)} episodes, {learn.words(fitted.metrics)}{ended}", "figures": fitted.metrics, "ended": fitted.ended}


if __name__ == "__main__":
    main(__file__, run, option="round")
