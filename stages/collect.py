"""Play the single-turn checkpoint over several turns on the train tasks: the trajectories that rft and critic learn from."""

from __future__ import annotations

from stages import judging, play
from stages.stage import Job, main

OUT = "artifacts/trajectories/collect"


def run(job: Job) -> None:
    from data.store import TrajectoryStore, read_tasks

    section = job.params.collect
    tasks = play.draw(read_tasks(job.root / "artifacts/tasks/selected/tasks.parquet", "train"), section.tasks, section.seed)
    with judging.launched(job) as judges:
        player = play.sampler(job, "artifacts/checkpoints/single_turn")
        store = TrajectoryStore(job.work / "live", 0)
        play.play_all(
            job, tasks, lambda task, seed: player.generate, judges=judges, store=store, checkpoint=player.checkpoint.id, tokenizer=player.tokenizer,
            samples=section.samples, seed=section.seed,
        )
    store.publish(job.out(OUT))
    job.summary = play.summary(job.out(OUT))


if __name__ == "__main__":
    main(__file__, run)
