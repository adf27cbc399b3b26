"""Value pretraining: a critic that starts from the rft policy learns the returns of the collected episodes (CUDA Agent, arXiv 2602.24286)."""

from __future__ import annotations

from stages import learn
from stages.stage import Job, main


def run(job: Job) -> None:
    from data.store import read_trajectories

    section = job.params.critic
    collected = [t for t in read_trajectories(job.root / "artifacts/trajectories/collect") if t.reward is not None]
    last = learn.value(job, collected, start="artifacts/checkpoints/rft", out="artifacts/critics/rft", section=section)
    job.summary = {"headline": f"values of {len(collected)} episodes, {learn.words(last)}", "figures": last}


if __name__ == "__main__":
    main(__file__, run)
