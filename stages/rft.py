"""Rejection fine-tuning: learn the collected episodes that ended well and were played sanely (`stages.learn.rejected`)."""

from __future__ import annotations

from stages import learn
from stages.stage import Job, main


def run(job: Job) -> None:
    from data.store import read_trajectories
    from policy import curriculum

    section = job.params.rft
    collected = read_trajectories(job.root / "artifacts/trajectories/collect")
    kept, dropped = learn.accepted(collected, section.min_reward)
    checkpoint = learn.imitate(job, kept, start="artifacts/checkpoints/single_turn", out="artifacts/checkpoints/rft", kind="rft", section=section)
    curriculum.save(curriculum.remember({}, collected), job.out("artifacts/checkpoints/rft"))
    job.summary = {
        "headline": f"learned {len(kept)} of {len(collected)} episodes, checkpoint {checkpoint.id}",
        "figures": {"kept": len(kept), "collected": len(collected)},
        "dropped": dropped,
    }


if __name__ == "__main__":
    main(__file__, run)
