"""The scripted teacher plays the held-out tasks: what honest kernels reach here, as a row to compare the model with."""

from __future__ import annotations

from stages import play, score
from stages.stage import Job, main

OUT = "artifacts/trajectories/teacher"


def run(job: Job) -> None:
    from data.store import TrajectoryStore, read_tasks, read_trajectories
    from policy.teacher import Teacher

    section, episode = job.params.teacher, job.params.episode
    teacher = Teacher(section.seed, format=episode.format, backend=job.params.judge.backend)
    tasks = play.writable(teacher, read_tasks(job.root / "artifacts/tasks/selected/tasks.parquet", section.split))
    store = TrajectoryStore(job.work / "live", 0)
    play.play_all(
        job, tasks, lambda task, seed: teacher.session(task, seed, mistakes=0.0), store=store, checkpoint="teacher", tokenizer=None, scripted=True,
        samples=section.samples, seed=section.seed,
    )
    store.publish(job.out(OUT))
    body = score.results("teacher", -1, None, tasks, read_trajectories(job.out(OUT)))
    score.write(job.out("artifacts/eval/teacher"), body)
    job.summary = {"headline": score.headline(body["figures"]), "figures": body["figures"]}


if __name__ == "__main__":
    main(__file__, run)
