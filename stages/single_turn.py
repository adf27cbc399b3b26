"""Single-turn reinforcement: one answer a task, judged at once, several rounds of play and update in one stage (CUDA Agent, arXiv 2602.24286).

Lambda is 1: an answer is one action, and its reward needs no bootstrapping. The critic starts from the policy with V = 0 and is
not kept; `critic` pretrains the one for the multi-turn rounds.
"""

from __future__ import annotations

import asyncio
import shutil

from data.records import content_id
from stages import judging, learn, play
from stages.stage import Job, main

OUT, TRAJECTORIES = "artifacts/checkpoints/single_turn", "artifacts/trajectories/single_turn"


def run(job: Job) -> None:
    with judging.launched(job) as judges:
        rewards, ended = asyncio.run(iterate(job, judges, play.sampler(job, "artifacts/checkpoints/sft")))
    checkpoint = learn.published(job, OUT)
    summary = play.summary(job.out(TRAJECTORIES))
    words = " -> ".join(f"{reward:.2f}" for reward in rewards)
    job.summary = {
        "headline": f"{summary['headline']}; mean reward by iteration {words}; checkpoint {checkpoint.id}{f'; ended early: {ended}' if ended else ''}",
        "figures": summary["figures"] | {"reward_first": rewards[0], "reward_last": rewards[-1]},
        "ended": ended,
    }


async def iterate(job: Job, judges, player) -> tuple[list[float], str | None]:
    """Play with the sampler `player` and update, `iterations` times or until an update diverges; `judges` is entered here.

    Returns the mean reward of each iteration and why it ended early.
    """
    from data.store import TrajectoryStore, read_tasks
    from policy import curriculum

    section = job.params.single_turn
    train = read_tasks(job.root / "artifacts/tasks/selected/tasks.parquet", "train")
    policy, critic = job.root / "artifacts/checkpoints/sft", None
    store, rewards, history, ids = TrajectoryStore(job.work / "live", 0), [], {}, []
    async with judges:
        for iteration in range(section.iterations):
            if iteration:
                player.reload(policy)
            seed = play.seed_of(section.seed, iteration)
            if section.draw == "variance":
                tasks = curriculum.draw(train, section.tasks, seed, history=history, floor=section.floor)
            else:
                tasks = play.draw(train, section.tasks, seed)
            await play.episodes(
                job, tasks, lambda task, seed: player.generate, judges=judges, store=store, checkpoint=player.checkpoint.id,
                tokenizer=player.tokenizer, samples=section.samples, first=iteration * section.samples, seed=seed, turns=1,
            )
            samples = range(iteration * section.samples, (iteration + 1) * section.samples)
            ids.append({content_id(task.id, player.checkpoint.id, "single_turn", 0, sample) for task in tasks for sample in samples})
            everything = play.so_far(job, store)
            played = [t for t in everything if t.id in ids[-1]]
            learned = [t for t in everything if any(t.id in one for one in ids[-1 - section.reuse :])]
            history = curriculum.remember(history, played)
            counted = [t.reward for t in played if t.reward is not None]
            rewards.append(sum(counted) / max(1, len(counted)))
            to, critic_to = job.work / f"policy-{iteration}", job.work / f"critic-{iteration}"
            fitted = learn.reinforce(
                job, learned, policy=policy, critic=critic, reference=job.root / "artifacts/checkpoints/sft", policy_out=to, critic_out=critic_to, kind="single_turn",
                section=section, name=f"fit-{iteration}", seed=section.seed + iteration, lam=1.0, lam_critic=1.0,
            )
            policy, critic = to, critic_to if section.algorithm == "ppo" else None
            if fitted.ended:
                break
    shutil.copytree(policy, job.out(OUT), dirs_exist_ok=True)
    store.publish(job.out(TRAJECTORIES))
    return rewards, fitted.ended and f"iteration {len(rewards)} of {section.iterations}: {fitted.ended}"


if __name__ == "__main__":
    main(__file__, run)
