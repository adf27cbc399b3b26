"""The arms of reinforcement as stages run them: one parameter chooses, the outs are the same, and only PPO has a critic."""

import asyncio
import contextlib
import dataclasses
import functools
import pathlib
import shutil
import types

import pyarrow.parquet as pq
import pytest
import yaml

from data.records import Task, ToolCall
from data.store import TrajectoryStore, write_tasks
from policy import curriculum, model, train
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


def updated(root, *, key="r01", prev="rft", **changes):
    section = dataclasses.replace(CHECKED.update, **{"batch": 4} | changes)
    this = job(root, f"update-{key}", key, update=section)
    this.params.round = params.Round(prev=prev)
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
    credit = pq.read_table(this.out("artifacts/critics/r01") / "credit.parquet").to_pylist()
    assert len(credit) == (0 if algorithm == "rft" else 16) and all((row["value"] is not None) == (algorithm == "ppo") for row in credit)
    figures, first = this.summary["figures"], this.journal()[0]
    assert first["episodes"] == (4 if algorithm == "rft" else 8)
    assert ("value_loss" in figures) == (algorithm == "ppo") and ("pg_loss" in figures) == (algorithm != "rft")
    if algorithm == "rft":
        assert (figures["kept"], figures["played"]) == (4.0, 8.0)


def test_rejection_with_nothing_left_says_what_dropped_it(place):
    rollout_of(place, "r01", 1, [episode(i, -1.0) for i in range(3)])
    with pytest.raises(ValueError, match=r"min_reward: got 2.0, which none of 3 trajectories passes \({'outcome': 3}\), wanted"):
        updated(place, algorithm="rft")


@pytest.mark.parametrize(("algorithm", "reuse"), [("trloo", 0), ("trloo", 1), ("rft", 0)])
def test_single_turns_iterate_without_a_critic(place, monkeypatch, algorithm, reuse):
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

    monkeypatch.setattr(play, "episodes", episodes)
    section = dataclasses.replace(CHECKED.single_turn, algorithm=algorithm, tasks=2, iterations=3, batch=4, draw="variance", reuse=reuse)
    this = job(place, "single_turn", single_turn=section)
    rewards, ended = asyncio.run(single_turn.iterate(this, contextlib.nullcontext(), player))
    assert len(rewards) == 3 and ended is None and learn.published(this, single_turn.OUT).kind == "single_turn"
    assert {row["fit"] for row in this.journal()} == {"fit-0", "fit-1", "fit-2"} and not list(this.work.glob("critic-*"))
    if algorithm == "trloo":
        assert [row["episodes"] for row in this.journal() if "episodes" in row] == ([8, 16, 16] if reuse else [8, 8, 8])


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
    monkeypatch.setattr(judging, "launched", lambda this: contextlib.nullcontext())
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


def test_every_option_of_a_fit_is_reached_from_params():
    reached = {}
    for method, section in (("sft", CHECKED.warm_start), ("rft", CHECKED.rft), ("value", CHECKED.critic), ("ppo", CHECKED.update)):
        parts = [section, *(part for part in vars(section).values() if dataclasses.is_dataclass(part))]
        reached |= {name: part for part in parts for name in vars(part)}
        given = learn.settings(types.SimpleNamespace(params=types.SimpleNamespace(machine=CHECKED.machine)), section, method)
        assert all(getattr(given, name) == value for part in parts for name, value in vars(part).items() if hasattr(given, name))
    # method comes from the stage; the rest are constants of the method
    missing = {field.name for field in dataclasses.fields(train.Settings)} - set(reached)
    assert missing == {"method", "weight_decay", "grad_clip", "temperature", "dtype", "save_after"} | {"tokens", "checkpointing"}
    machine = dataclasses.replace(CHECKED.machine, micro_tokens=77, checkpointing=True)
    this = types.SimpleNamespace(params=types.SimpleNamespace(machine=machine))
    assert (learn.settings(this, CHECKED.rft, "rft").tokens, learn.settings(this, CHECKED.rft, "rft").checkpointing) == (77, True)


@pytest.mark.parametrize(
    ("section", "change", "line"),
    [
        ("update", {"gamma": 1.5}, "update.gamma: got 1.5, wanted 0 to 1"),
        ("critic", {"lam_critic": 2}, "critic.lam_critic: got 2.0, wanted 0 to 1"),
        ("single_turn", {"clip_low": 1.0}, "single_turn.clip_low: got 1.0, wanted more than 0 and less than 1"),
        ("update", {"loss.tis_cap": 0.5}, "update.loss.tis_cap: got 0.5, wanted 1 or more"),
        ("update", {"loss.mrs_band": [1.1, 1.2]}, "update.loss.mrs_band: got [1.1, 1.2], wanted two bounds around 1"),
        ("update", {"loss.mrs_band": [0.9]}, "update.loss.mrs_band: got [0.9], wanted two bounds around 1"),
        ("update", {"loss.kl_coef": 0.1}, "update.loss.kl_coef: got 0.1, wanted 0 where loss.kl is null"),
        ("update", {"loss.kl": "k3"}, "update.loss.kl_coef: got 0.0, wanted more than zero where loss.kl is k3"),
        ("update", {"loss.kl": "k4"}, "update.loss.kl: got 'k4', wanted k1 or k2 or k3"),
        ("update", {"bounds.diverged_entropy": 1}, "update.bounds.diverged_entropy: got 1.0, wanted more than 1"),
        ("update", {"loss.positive_coef": -1}, "update.loss.positive_coef: got -1.0, wanted zero or more"),
        ("update", {"algorithm": "dpo"}, "update.algorithm: got 'dpo', wanted ppo or trloo or rft"),
        ("update", {"reuse": 1}, "update.loss.tis_cap: got None, wanted a number: update.reuse learns"),
        ("update", {"lora_rank": 0}, "update.lora_rank: got 0, wanted 1 or more"),
        ("machine", {"micro_tokens": 0}, "machine.micro_tokens: got 0, wanted 1 or more"),
        ("rollout", {"floor": 0}, "rollout.floor: got 0.0, wanted more than zero"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_two(tmp_path, section, change, line):
    values = yaml.safe_load((ROOT / "stages/presets/tiny.yaml").read_text())
    for key, value in change.items():
        *inner, name = key.split(".")
        functools.reduce(lambda at, step: at[step], inner, values[section])[name] = value
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ValueError) as caught:
        params.load(tmp_path / "params.yaml")
    assert str(caught.value).partition(": ")[2].startswith(line) and "\n" not in str(caught.value)


def test_a_round_that_diverges_ends_early_and_says_why(place):
    rollout_of(place, "r01", 1, [episode(i, reward, task=f"t{i % 2}") for i, reward in enumerate(REWARDS)])
    this = updated(place, epochs=4, lr=1e-2, bounds=params.Bounds(kl_stop=None, diverged_kl=1e-5, diverged_entropy=None))
    assert this.summary["ended"].startswith("approx_kl_k3") and "ended early: approx_kl_k3" in this.summary["headline"]
    assert (
        len(this.journal()) < 8
        and model.read_record(this.out("artifacts/checkpoints/r01")).parent == model.read_record(place / "artifacts/checkpoints/rft").id
    )


def test_numbers_that_are_not_finite_are_one_line(place):
    rollout_of(place, "r01", 1, [episode(i, reward) for i, reward in enumerate(REWARDS)])
    with pytest.raises(ValueError, match=r"fit: .* got (nan|inf), wanted a finite number.*\(a lower lr") as caught:
        updated(place, epochs=3, lr=1e30, critic_lr=0.0)
    assert "\n" not in str(caught.value)


def test_kl_of_a_round_is_measured_to_the_warm_started_policy(place):
    tokenizer = model.load_tokenizer(place / "artifacts/checkpoints/rft")
    make(tokenizer, place / "artifacts/checkpoints/sft", seed=9)
    rollout_of(place, "r01", 1, [episode(i, reward) for i, reward in enumerate(REWARDS)])
    first = updated(place, loss=dataclasses.replace(CHECKED.update.loss, kl="k3", kl_coef=0.1)).journal()[0]
    assert first["kl_reference"] > 0.1 and first["approx_kl_k3"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("algorithm", ["ppo", "rft"])
def test_earlier_rollouts_are_learned_again_and_no_more_than_asked_for(place, algorithm):
    loss = dataclasses.replace(CHECKED.update.loss, tis_cap=2.0)
    seen = {}
    for number, (key, prev) in enumerate([("r01", "rft"), ("r02", "r01"), ("r03", "r02")], 1):
        record = model.read_record(place / f"artifacts/checkpoints/{prev}").id
        rollout_of(place, key, number, [episode(i, reward, checkpoint=record) for i, reward in enumerate(REWARDS)])
        this = updated(place, key=key, prev=prev, algorithm=algorithm, reuse=1, loss=loss)
        for out in (f"artifacts/checkpoints/{key}", f"artifacts/critics/{key}"):
            shutil.copytree(this.out(out), place / out)
        seen[key] = this.journal()[0]["episodes"], sorted(folder.name for folder in (place / f"artifacts/critics/{key}/replay").iterdir())
    once, twice = (4, 8) if algorithm == "rft" else (8, 16)
    assert seen == {"r01": (once, ["rollout-r01"]), "r02": (twice, ["rollout-r02"]), "r03": (twice, ["rollout-r03"])}
    assert algorithm == "rft" or "16 episodes, 8 of earlier rounds" in this.summary["headline"]
