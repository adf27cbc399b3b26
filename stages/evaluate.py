"""Play a checkpoint on held-out tasks and say how often its kernels are right, how often faster, and by how much."""

from __future__ import annotations

from stages import judging, play, score
from stages.stage import Job, main


def run(job: Job) -> None:
    from data.store import TrajectoryStore, read_tasks, read_trajectories

    section = job.params.evaluate
    tasks = play.draw(read_tasks(job.root / "artifacts/tasks/selected/tasks.parquet", section.split), section.tasks, section.seed)
    with judging.launched(job) as judges:
        player = play.sampler(job, f"artifacts/checkpoints/{job.key}")
        store = TrajectoryStore(job.work / "live", job.round)
        play.play_all(
            job, tasks, lambda task, seed: player.generate, judges=judges, store=store, checkpoint=player.checkpoint.id, tokenizer=player.tokenizer,
            samples=section.samples, seed=section.seed, round=job.round,
        )
    store.publish(job.out(f"artifacts/trajectories/evaluate-{job.key}"))
    trajectories = read_trajectories(job.out(f"artifacts/trajectories/evaluate-{job.key}"))
    body = score.results(job.key, order(job), player.checkpoint, tasks, trajectories)
    score.write(job.out(f"artifacts/eval/{job.key}"), body)
    job.summary = {"headline": score.headline(body["figures"]), "figures": body["figures"]}


def order(job: Job) -> int:
    """Place among the players: the fixed checkpoints in the order of training, then the rounds."""
    from stages.params import FIXED

    return FIXED.index(job.key) if job.key in FIXED else len(FIXED) + job.round


if __name__ == "__main__":
    main(__file__, run, option="checkpoint")
