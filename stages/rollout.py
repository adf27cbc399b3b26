"""Play the previous checkpoint on train tasks: the episodes that this round's update learns from."""

from __future__ import annotations

from stages import judging, play
from stages.stage import Job, main


def run(job: Job) -> None:
    from data.store import TrajectoryStore, read_tasks
    from policy import curriculum

    section, out = job.params.rollout, f"artifacts/trajectories/rollout-{job.key}"
    train, seed = read_tasks(job.root / "artifacts/tasks/selected/tasks.parquet", "train"), section.seed + job.round
    if section.draw == "variance":
        history = curriculum.load(job.root / f"artifacts/checkpoints/{job.params.round.prev}")
        tasks = curriculum.draw(train, section.tasks, seed, history=history, floor=section.floor)
    else:
        tasks = play.draw(train, section.tasks, seed)
    with judging.launched(job) as judges:
        player = play.sampler(job, f"artifacts/checkpoints/{job.params.round.prev}")
        store = TrajectoryStore(job.work / "live", job.round)
        play.play_all(
            job, tasks, lambda task, seed: player.generate, judges=judges, store=store, checkpoint=player.checkpoint.id, tokenizer=player.tokenizer,
            samples=section.samples, seed=play.seed_of(section.seed, job.round), round=job.round,
        )
    store.publish(job.out(out))
    job.summary = play.summary(job.out(out))


if __name__ == "__main__":
    main(__file__, run, option="round")
