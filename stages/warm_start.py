"""The warm start: a model learns the scripted teacher's sessions, so that what it plays compiles before reinforcement begins.

Two sources: first turns on practice tasks made here, none with the operator signature of a held-out task, and whole sessions on the
train tasks, played in the sandbox with real verdicts. No loss falls on planted mistakes. Publishes the model as it begins (base),
what it is afterwards (sft), and the judged sessions.
"""

from __future__ import annotations

import dataclasses

from data.records import Task, Trajectory, Turn
from stages import learn, play
from stages.stage import Job, main

BASE, SFT, SESSIONS = "artifacts/checkpoints/base", "artifacts/checkpoints/sft", "artifacts/trajectories/warm_start"


def run(job: Job) -> None:
    from data.store import read_tasks
    from policy.model import load_tokenizer

    section = job.params.warm_start
    selected = read_tasks(job.root / "artifacts/tasks/selected/tasks.parquet")
    sessions = judged(job, [task for task in selected if task.split == "train"])
    held_out = {task.operators for task in selected if task.split != "train"}
    practice = practised(job, held_out)
    if not job.out(BASE).exists():
        begin(job, practice, sessions)
    prompt = play.prompt(job, load_tokenizer(job.out(BASE)))
    named = {task.id: task for task in selected}
    whole = [tokenized(t, named[t.task], prompt) for t in sessions if t.verdict and t.verdict.correct]
    rows = [dataclasses.replace(t, sample=t.sample + copy * section.judged) for copy in range(section.repeat) for t in whole]
    rows += [written(task, action, index, prompt) for index, (task, action) in enumerate(practice)]
    base = learn.published(job, BASE)
    learn.fit(job, rows, learn.settings(job, section, "sft"), policy=job.out(BASE), out=job.out(SFT), kind="sft")
    checkpoint = learn.published(job, SFT)
    last = job.journal()[-1]
    job.summary = {
        "headline": f"{len(practice)} first turns and {len(whole)} judged sessions, {learn.words(last)}, checkpoint {checkpoint.id} from {base.id}",
        "figures": {"practice": len(practice), "judged": len(sessions), "judged_correct": len(whole), "loss": last.get("loss")},
    }


def judged(job: Job, tasks: list[Task]) -> list[Trajectory]:
    """Whole teacher sessions on the train tasks with real verdicts, published as text (the tokenizer comes after them)."""
    from data.store import TrajectoryStore, read_trajectories
    from policy.teacher import Teacher

    section, episode = job.params.warm_start, job.params.episode
    teacher = Teacher(section.seed, format=episode.format, backend=job.params.judge.backend)
    store = TrajectoryStore(job.work / "live", 0)
    play.play_all(
        job, play.writable(teacher, tasks), lambda task, seed: teacher.session(task, seed, mistakes=section.mistakes), store=store,
        checkpoint="teacher", tokenizer=None, scripted=True, samples=section.judged, seed=section.seed,
    )
    store.publish(job.out(SESSIONS))
    return read_trajectories(job.out(SESSIONS))


def practised(job: Job, held_out: set[tuple[str, ...]]) -> list[tuple[Task, str]]:
    """(task, the teacher's first turn) on new tasks that share no operator signature with a held-out one."""
    from data.synthesis import synthesize
    from policy.teacher import sessions_text

    section, episode, backend = job.params.warm_start, job.params.episode, job.params.judge.backend
    made = dataclasses.asdict(job.params.synthesize) | {"count": section.practice, "seed": job.params.synthesize.seed + 1000 + section.seed}
    tasks = synthesize(**made, avoid=held_out)
    texts, seed = play.prompt(job, None), play.seed_of(section.seed)
    return [
        (task, action)
        for index in range(section.sessions)
        for task in tasks
        for _, action in sessions_text([task], seed + index, prompt=texts, format=episode.format, backend=backend)
    ]


def begin(job: Job, practice: list[tuple[Task, str]], sessions: list[Trajectory]) -> None:
    """The model that training begins with: from `model.path`, or from scratch with a tokenizer for these very texts."""
    from policy import model

    section, texts = job.params.model, play.prompt(job, None)
    if section.path is not None:
        import torch

        start, tokenizer, _ = model.load(section.path, dtype=getattr(torch, section.dtype))
    else:
        seen = [part for task, action in practice for part in (*(segment.text for segment in texts.opening(task)), action)]
        seen += [part for t in sessions for turn in t.turns for part in (turn.text, turn.observation)]
        tokenizer = model.train_tokenizer(seen, section.vocab, line_share=section.line_share)
        shape = {name: getattr(section, name) for name in ("family", "hidden", "layers", "heads", "kv_heads", "intermediate", "context")}
        start = model.create(tokenizer, **shape, seed=job.params.warm_start.seed)
    model.save(start, tokenizer, job.out(BASE), parent=None, kind="base")


def tokenized(trajectory: Trajectory, task: Task, prompt) -> Trajectory:
    """A session played as text, with the ids that the same session has for a model."""
    opening = tuple(i for segment in prompt.opening(task) for i in segment.ids)
    turns = []
    for turn in trajectory.turns:
        observation = prompt.observe(turn.observation).ids if turn.observation else ()
        ids = {"prompt_ids": opening if turn.index == 0 else (), "action_ids": prompt.encode_action(turn.text), "observation_ids": observation}
        turns.append(dataclasses.replace(turn, **ids))
    return dataclasses.replace(trajectory, turns=tuple(turns))


def written(task: Task, action: str, index: int, prompt) -> Trajectory:
    """A first turn of the teacher as a trajectory to learn; it was not judged and has no verdict."""
    opening = tuple(i for segment in prompt.opening(task) for i in segment.ids)
    turn = Turn(index=0, prompt_ids=opening, action_ids=prompt.encode_action(action), text=action, finish_reason="stop")
    return Trajectory(task=task.id, checkpoint="teacher", stage="practice", round=0, sample=index, turns=(turn,), stop="max_turns")


if __name__ == "__main__":
    main(__file__, run)
