"""Rejection fine-tuning: learn the collected episodes that ended well and were played sanely.

The outcome filter wants a reward; the pattern filter drops episodes with a broken or pointless course, so that the model does not
learn to repeat itself, to talk past the tools, or to be cut off (CUDA Agent, arXiv 2602.24286).
"""

from __future__ import annotations

import collections

from data.records import Trajectory
from stages import learn
from stages.stage import Job, main


def rejected(trajectory: Trajectory, min_reward: float) -> str | None:
    """The name of the first rule that drops the trajectory, or None when it is to be learned."""
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


def run(job: Job) -> None:
    from data.store import read_trajectories

    section = job.params.rft
    collected = read_trajectories(job.root / "artifacts/trajectories/collect")
    why = {t.id: rejected(t, section.min_reward) for t in collected}
    kept = [t for t in collected if why[t.id] is None]
    dropped = dict(collections.Counter(rule for rule in why.values() if rule).most_common())
    if not kept:
        raise ValueError(f"rft.min_reward: got {section.min_reward}, which none of {len(collected)} trajectories passes ({dropped}), wanted a lower one")
    checkpoint = learn.imitate(job, kept, start="artifacts/checkpoints/single_turn", out="artifacts/checkpoints/rft", kind="rft", section=section)
    job.summary = {
        "headline": f"learned {len(kept)} of {len(collected)} episodes, checkpoint {checkpoint.id}",
        "figures": {"kept": len(kept), "collected": len(collected)},
        "dropped": dropped,
    }


if __name__ == "__main__":
    main(__file__, run)
