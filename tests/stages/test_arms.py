"""The arms of reinforcement as stages run them: one parameter chooses, the outs are the same, and only PPO has a critic."""

import asyncio
import contextlib
import dataclasses
import pathlib
import shutil
import types

import pytest

from data.records import Task, ToolCall
from data.store import TrajectoryStore, write_tasks
from policy import curriculum, model
from stages import judging, learn, params, play, rollout, single_turn, update
from stages.stage import Job
from tests.policy.conftest import TEXTS, make
from tests.policy.toys import trajectory

ROOT = pathlib.Path(__file__).parents[2]
CHECKED = params.load(ROOT / "stages/presets/tiny.yaml")


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """A root with an untrained policy as sft and rft, and a critic of it."""
    root = tmp_path_factory.mktemp("arms")
    tokenizer = model.train_tokenizer(TEXTS, 300)
    folder = make(tokenizer, root / "artifacts/checkpoints/rft", seed=0)
    shutil.copytree(folder, root / "artifacts/checkpoints/sft")
    model.save(model.Critic.from_policy(folder), tokenizer, root / "artifacts/critics/rft", parent=None, kind="critic")
    return root


@pytest.fixture
def place(start, tmp_path):
    shutil.copytree(start, tmp_path / "root")
    return tmp_path / "root"


def job(root, name, key=None, **sections):
    values = types.SimpleNamespace(
        machine=CHECKED.machine, judge=CHECKED.judge, episode=CHECKED.episode, round=params.Round(prev="rft"), **sections
    )
    return Job(name=name, key=key, params=values, work=root / "work" / name, root=root)


def episode(sample, reward, *, task="t", **changes):
    """One that rejection keeps when its reward is good enough."""
    made = trajectory(sample, turns=[(4 + sample % 3, 3), (5, 0)], reward=reward, task=task)
    turns = [
        dataclasses.replace(turn, text=f"{sample} {turn.index}", tool_calls=(ToolCall(tool="submit", args={}),)) for turn in made.turns
    ]
    return dataclasses.replace(made, turns=tuple(turns), **changes)


def rollout_of(root, key, number, episodes):
    store = TrajectoryStore(root / "live" / key, number)
    for one in episodes:
        store.add(dataclasses.replace(one, round=number))
    store.publish(root / f"artifacts/trajectories/rollout-{key}")


def updated(root, *, key="r01", **changes):
    section = dataclasses.replace(CHECKED.update, batch=4, **changes)
    this = job(root, f"update-{key}", key, update=section)
    update.run(this)
    return this


REWARDS = [3.0, -1.0, 2.0, -1.0, 1.0, -1.0, 3.0, 2.0]


@pytest.mark.parametrize("algorithm", ["ppo", "trloo", "rft"])
def test_every_arm_leaves_the_same_outs_and_only_ppo_has_a_critic(place, monkeypatch, algorithm):
    rollout_of(place, "r01", 1, [episode(i, reward, task=f"t{i % 2}") for i, reward in enumerate(REWARDS)])
    if algorithm != "ppo":
        monkeypatch.setattr(model.Critic, "load", lambda *a, **k: pytest.fail("a critic was built"))
        monkeypatch.setattr(model.Critic, "from_policy", lambda *a, **k: pytest.fail("a critic was built"))
    this = updated(place, algorithm=algorithm)
    begin, made = (model.read_record(path) for path in (place / "artifacts/checkpoints/rft", this.out("artifacts/checkpoints/r01")))
    assert made.kind == "ppo" and made.round == 1 and made.parent == begin.id and made.id != begin.id
    critics = [model.read_record(path) for path in (place / "artifacts/critics/rft", this.out("artifacts/critics/r01"))]
    assert critics[1].kind == "critic" and (critics[0].id == critics[1].id) == (algorithm != "ppo")
    figures, first = this.summary["figures"], this.journal()[0]
    assert first["episodes"] == (4 if algorithm == "rft" else 8)
    assert ("value_loss" in figures) == (algorithm == "ppo") and ("pg_loss" in figures) == (algorithm != "rft")
    if algorithm == "rft":
        assert (figures["kept"], figures["played"]) == (4.0, 8.0)


def test_rejection_with_nothing_left_says_what_dropped_it(place):
    rollout_of(place, "r01", 1, [episode(i, -1.0) for i in range(3)])
    with pytest.raises(ValueError, match=r"min_reward: got 2.0, which none of 3 trajectories passes \({'outcome': 3}\), wanted"):
        updated(place, algorithm="rft")


@pytest.mark.parametrize("algorithm", ["trloo", "rft"])
def test_single_turns_iterate_without_a_critic(place, monkeypatch, algorithm):
    tasks = [Task(source=f"task {i}", origin="user", split="train") for i in range(3)]
    write_tasks(place / "artifacts/tasks/selected/tasks.parquet", tasks)
    player = types.SimpleNamespace(generate=None, tokenizer=None)
    player.reload = lambda path: setattr(player, "checkpoint", model.read_record(path))
    player.reload(place / "artifacts/checkpoints/sft")

    async def episodes(this, drawn, players, *, store, checkpoint, samples, first, **rest):
        for number, task in enumerate(drawn):
            for sample in range(first, first + samples):
                reward = REWARDS[(number + sample) % len(REWARDS)]
                store.add(episode(sample, reward, task=task.id, checkpoint=checkpoint, stage="single_turn"))

    @contextlib.asynccontextmanager
    async def pool(this):
        yield None

    monkeypatch.setattr(judging, "pool", pool)
    monkeypatch.setattr(play, "sampler", lambda *a: player)
    monkeypatch.setattr(play, "episodes", episodes)
    section = dataclasses.replace(CHECKED.single_turn, algorithm=algorithm, tasks=2, iterations=3, batch=4, draw="variance")
    this = job(place, "single_turn", single_turn=section)
    rewards = asyncio.run(single_turn.iterate(this))
    assert len(rewards) == 3 and learn.published(this, single_turn.OUT).kind == "single_turn"
    assert {row["fit"] for row in this.journal()} == {"fit-0", "fit-1", "fit-2"} and not list(this.work.glob("critic-*"))


def test_a_rounds_rewards_decide_what_the_next_round_plays(place, monkeypatch):
    tasks = [Task(source=f"task {i}", origin="user", split="train") for i in range(12)]
    write_tasks(place / "artifacts/tasks/selected/tasks.parquet", tasks)
    mixed = tasks[5]
    ends = [episode(i, 3.0 if i % 2 and task is mixed else -1.0, task=task.id) for task in tasks for i in range(4)]
    rollout_of(place, "r01", 1, ends)
    this = updated(place)
    shutil.copytree(this.out("artifacts/checkpoints/r01"), place / "artifacts/checkpoints/r01")
    assert curriculum.load(place / "artifacts/checkpoints/r01")[mixed.id] == [-1.0, 3.0, -1.0, 3.0]
    model.read_record(place / "artifacts/checkpoints/r01")  # the file beside the weights is no part of their hash
    played = []
    record = types.SimpleNamespace(id="c")
    monkeypatch.setattr(play, "sampler", lambda *a: types.SimpleNamespace(checkpoint=record, tokenizer=None, generate=None))
    monkeypatch.setattr(play, "play_all", lambda this, drawn, *a, **k: played.append(drawn))
    for way, floor in (("variance", 1e-9), ("uniform", 1e-9)):
        section = dataclasses.replace(CHECKED.rollout, draw=way, floor=floor, tasks=1)
        for seed in range(4):
            this = job(place, f"rollout-{way}-{seed}", "r02", rollout=dataclasses.replace(section, seed=seed))
            this.params.round = params.Round(prev="r01")
            rollout.run(this)
    assert [drawn for (drawn,) in played[:4]] == [mixed] * 4
    assert played[4:] == [play.draw(tasks, 1, seed + 2) for seed in range(4)]
