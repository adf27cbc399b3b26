"""Many episodes at once, with resume: the one place where a player, the sandbox and the store meet.

Used by every stage that plays. Finished trajectories are on disk before they count as finished, so a stopped stage goes on where
it was; an `infra_error` is kept and counted, never played twice in one go. It does not train and draws no conclusions.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from data.records import SandboxError, Task, Trajectory, content_id
from stages.judging import pool
from stages.stage import Job


class Gate:
    """Lets either generation or judging run, each as wide as it likes, never both: on the same cores or GPU they would falsify
    each other's times. A phase ends when nothing of it is under way and nobody waits for it: else a short step of one phase would
    let the other in, and long steps would come one by one. Open both ways (`exclusive=False`) where they share nothing."""

    def __init__(self, exclusive: bool):
        self.exclusive = exclusive
        self.phase, self.active = None, 0
        self.waiting: collections.Counter[str] = collections.Counter()
        self.changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def during(self, phase: str):
        if not self.exclusive:
            yield
            return
        async with self.changed:
            self.waiting[phase] += 1
            try:
                await self.changed.wait_for(lambda: self.phase == phase or (self.active == 0 and not self.waiting[self.phase]))
            finally:
                self.waiting[phase] -= 1
                self.changed.notify_all()
            self.phase, self.active = phase, self.active + 1
        try:
            yield
        finally:
            async with self.changed:
                self.active -= 1
                self.changed.notify_all()


class _GatedWorkspace:
    """A Workspace whose tools and judgement wait for the judging phase."""

    def __init__(self, inner, gate: Gate):
        self.inner, self.gate, self.task = inner, gate, inner.task

    async def run(self, tool: str, args: dict[str, Any]):
        async with self.gate.during("judge"):
            return await self.inner.run(tool, args)

    def candidate(self):
        return self.inner.candidate()

    async def judge(self):
        async with self.gate.during("judge"):
            return await self.inner.judge()


def device(job: Job) -> str:
    """cpu or cuda, as `machine.device` says; auto = cuda when there is one."""
    import torch

    wanted = job.params.machine.device
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"machine.device: got {wanted!r} without a CUDA device, wanted auto or cpu")
    return wanted


def sampler(job: Job, checkpoint: str):
    """The player on the checkpoint folder `checkpoint` (a path as in dvc.yaml): embedded, or served where the environment says
    CUDA_AGENT_SAMPLER=vllm=http://HOST:8000 (or sglang=...; its key, if it wants one, in CUDA_AGENT_SAMPLER_KEY)."""
    from policy.sampler import HfSampler

    machine, episode = job.params.machine, job.params.episode
    if served := os.environ.get("CUDA_AGENT_SAMPLER"):
        from policy.endpoint import EndpointSampler

        server, _, address = served.partition("=")
        key = "CUDA_AGENT_SAMPLER_KEY" if "CUDA_AGENT_SAMPLER_KEY" in os.environ else ""
        return EndpointSampler(
            job.root / checkpoint, address=address, server=server, context=episode.context, key_from=key, in_flight=machine.sampler_batch
        )
    return HfSampler(job.root / checkpoint, device=device(job), max_batch=machine.sampler_batch, dtype=episode.dtype, context=episode.context)


def prompt(job: Job, tokenizer: Any, *, turns: int | None = None):
    """The Prompt that params.yaml asks for."""
    from data.tools import SETS
    from policy.prompt import Prompt

    section = job.params.episode
    return Prompt(
        tokenizer, format=section.format, backend=job.params.judge.backend, max_turns=turns or section.turns, detail=section.detail,
        view=section.view, tools=SETS[section.tools],
    )


def draw(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """`count` of the tasks (0 = all) in an order that depends on the seed alone."""
    chosen = sorted(tasks, key=lambda task: content_id(task.id, seed))
    return chosen[:count] if count else chosen


def seed_of(*parts: Any) -> int:
    """A 31-bit seed that depends on all the parts."""
    return int(content_id(*parts), 16) & 0x7FFFFFFF


async def episodes(
    job: Job,
    tasks: Sequence[Task],
    player: Callable[[Task, int], Any],
    *,
    judges,
    store,
    checkpoint: str,
    tokenizer: Any,
    scripted: bool = False,
    samples: int,
    seed: int,
    first: int = 0,
    turns: int | None = None,
    round: int = 0,
    gather: int | None = None,
) -> dict[str, int]:
    """Play the samples `first`, `first` + 1, ... (`samples` of them) of each task into `store` (a TrajectoryStore), those already there left out.

    player(task, seed) -> the `generate` callable of one episode; scripted: that costs no time; judges: an entered Pool; gather: episodes under way at once, by
    default as many as the sampler decodes together. Returns how many were played now, by stop reason, and how many were correct.
    Raises what stopped an episode other than a SandboxError, and SandboxError when none of several episodes could be judged.
    """
    from data.tools import SETS
    from policy import reward
    from policy.episode import play
    from sandbox.shell import Shells
    from sandbox.workspace import FolderWorkspace

    section, stage = job.params.episode, job.name.partition("@")[0]
    limits = {"max_turns": turns or section.turns, "max_new_tokens": section.new_tokens, "context": section.context}
    shown = prompt(job, tokenizer, turns=turns)
    todo = collections.deque(unplayed(job, tasks, store, checkpoint=checkpoint, first=first, samples=samples, round=round))
    total = len(tasks) * samples
    done = total - len(todo)
    counts: collections.Counter[str] = collections.Counter()
    lost: list[Trajectory] = []
    # The judge takes every core or every GPU; a script costs nothing, and the next step of its episode finds the task still ready
    gate = Gate(exclusive=not scripted and (job.params.judge.backend == "cpp" or device(job) != "cpu"))

    async def one(task: Task, sample: int) -> Trajectory:
        number = seed_of(seed, task.id, sample)
        inner = player(task, number)

        async def generate(*args, **keywords):
            async with gate.during("generate"):
                return await inner(*args, **keywords)

        workspace = FolderWorkspace(task, pool=judges, format=section.format, tools=SETS[section.tools], shells=shells)
        try:
            return await play(
                task, generate, _GatedWorkspace(workspace, gate), prompt=shown, checkpoint=checkpoint, stage=stage, round=round, sample=sample,
                seed=number, reward=getattr(reward, section.reward), **limits,
            )
        finally:
            workspace.close()

    async def lane() -> None:
        nonlocal done
        while todo:
            task, sample = todo.popleft()
            trajectory = await one(task, sample)
            # Our failures count as played only once it is known that not everything failed: else a restart could never mend them.
            (lost.append if trajectory.stop == "infra_error" else store.add)(trajectory)
            done += 1
            counts[trajectory.stop] += 1
            counts["correct"] += bool(trajectory.verdict and trajectory.verdict.correct)
            job.progress(done, total, f"{counts['correct']} correct")

    shells = await asyncio.to_thread(Shells) if section.tools == "all" and todo else None
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(gather or job.params.machine.sampler_batch, len(todo))):
                group.create_task(lane())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        if shells is not None:
            shells.close()
    if lost and len(lost) == total:
        raise SandboxError(f"none of {total} episodes could be judged, the last because: {lost[-1].error}")
    for trajectory in lost:
        store.add(trajectory)
    return dict(counts)


def unplayed(
    job: Job, tasks: Sequence[Task], store, *, checkpoint: str, samples: int, first: int = 0, round: int = 0
) -> list[tuple[Task, int]]:
    """(task, sample) of the episodes that are not whole on disk; the samples of a task stand together, since its slot has it ready."""
    finished, stage = store.finished(), job.name.partition("@")[0]
    every = [(task, sample) for task in tasks for sample in range(first, first + samples)]
    return [(task, sample) for task, sample in every if content_id(task.id, checkpoint, stage, round, sample) not in finished]


def play_all(job: Job, tasks: Sequence[Task], player: Callable[[Task, int], Any], *, judges=None, **keywords: Any) -> dict[str, int]:
    """`episodes` with a pool that is entered here, by default one of its own, opened only when an episode is left to play; `judges`: one
    that was launched while the player was loaded. All its processes are gone when this returns."""
    asked = {name: keywords[name] for name in ("checkpoint", "samples", "first", "round") if name in keywords}
    if judges is None and not unplayed(job, tasks, keywords["store"], **asked):
        return {}

    async def run() -> dict[str, int]:
        async with judges or pool(job) as entered:
            return await episodes(job, tasks, player, judges=entered, **keywords)

    return asyncio.run(run())


def so_far(job: Job, store) -> list[Trajectory]:
    """What a running stage has played, read back from disk."""
    from data.store import read_trajectories

    store.publish(job.work / "so-far")
    return read_trajectories(job.work / "so-far")


def writable(teacher, tasks: Sequence[Task]) -> list[Task]:
    """The tasks that the scripted teacher can write; the others are named on the terminal."""
    able = []
    for task in tasks:
        try:
            teacher.program(task)
            able.append(task)
        except ValueError as error:
            print(f"the teacher cannot write {task.id} ({', '.join(task.operators)}): {error}", flush=True)
    return able


def summary(folder) -> dict[str, Any]:
    """Headline and figures of published trajectories, for the metrics file."""
    from data.store import read_trajectories

    trajectories = read_trajectories(folder)
    counted = [t for t in trajectories if t.reward is not None]
    correct = sum(bool(t.verdict and t.verdict.correct) for t in counted)
    faster = sum(bool(t.verdict and t.verdict.faster_than("eager")) for t in counted)
    size = max(1, len(counted))
    found = {
        "episodes": len(counted),
        "left_out": len(trajectories) - len(counted),
        "pass_rate": correct / size,
        "faster_eager": faster / size,
        "reward": sum(t.reward for t in counted) / size,
        "turns": sum(len(t.turns) for t in counted) / size,
    }
    return {"headline": f"{len(counted)} episodes, {correct} correct, {faster} faster than eager, {found['left_out']} left out", "figures": found}
