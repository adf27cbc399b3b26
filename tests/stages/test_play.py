"""Many episodes at once: what is on disk is not played again, what we lose is counted, and generation and judging never overlap."""

import asyncio
import pathlib
import types

import pytest

from data.records import SandboxError, Task, ToolCall, Verdict
from data.store import TrajectoryStore
from policy.prompt import call_text
from policy.sampler import Completion
from stages import learn, params, play
from stages.stage import Job

ROOT = pathlib.Path(__file__).parents[2]
CHECKED = params.load(ROOT / "params.yaml")


class Judges:
    """A pool that answers at once; counts what overlaps."""

    backend, policy = "cpp", "libraries_allowed"

    def __init__(self, fail=()):
        self.fail, self.judged, self.judging, self.generating, self.together = set(fail), 0, 0, 0, 0

    async def judge(self, task, candidate, *, fresh):
        self.judging += 1
        self.together += self.generating > 0
        await asyncio.sleep(0.002)
        self.judging -= 1
        self.judged += 1
        if task.source in self.fail:
            raise SandboxError("no disk")
        times = {"candidate": 1.0, "eager": 2.0, "compile": 3.0}
        speedup = {"eager": (1.9, 2.0, 2.1), "compile": (2.9, 3.0, 3.1)}
        return Verdict(status="correct", task=task.id, candidate=candidate.id, backend="cpp", policy=self.policy, times_ms=times, speedup=speedup)


def job(tmp_path):
    values = types.SimpleNamespace(machine=CHECKED.machine, judge=CHECKED.judge, episode=CHECKED.episode)
    return Job(name="collect", key=None, params=values, work=tmp_path / "work", root=tmp_path)


def tasks(count):
    return [Task(source=f"task {i}", origin="user", operators=("relu",)) for i in range(count)]


def run(tmp_path, judges, some, *, samples=2, stop_after=None, gather=4):
    played = []

    def player(task, seed):
        async def generate(segments, *, max_new_tokens, seed):
            if stop_after is not None and len(played) >= stop_after:
                raise KeyboardInterrupt
            judges.generating += 1
            judges.together += judges.judging > 0
            await asyncio.sleep(0.001)
            judges.generating -= 1
            played.append(task.source)
            text = call_text("write", path="model_new.py", content="x = 1") + call_text("submit")
            return Completion(ids=None, logprobs=None, text=text, finish_reason="stop", policy_version="p")

        return generate

    store = TrajectoryStore(tmp_path / "live", 0)
    view = types.SimpleNamespace(**vars(CHECKED.episode) | {"view": "source"})
    this = job(tmp_path)
    this.params.episode = view
    counts = asyncio.run(
        play.episodes(this, some, player, judges=judges, store=store, checkpoint="k", tokenizer=None, samples=samples, seed=1, gather=gather)
    )
    return counts, played, store


def test_every_episode_is_played_once_and_kept(tmp_path):
    counts, played, store = run(tmp_path, Judges(), tasks(5))
    assert counts == {"done": 10, "correct": 10} and len(played) == 10 and len(store.finished()) == 10


def test_what_is_on_disk_is_not_played_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Judges(), tasks(5), stop_after=6, gather=1)
    before = TrajectoryStore(tmp_path / "live", 0).finished()
    assert 4 <= len(before) <= 6
    counts, played, store = run(tmp_path, Judges(), tasks(5))
    assert len(played) == 10 - len(before) == counts["done"] and len(store.finished()) == 10
    assert before <= store.finished()


def test_an_episode_that_we_lose_is_counted_and_has_no_reward(tmp_path):
    counts, _, store = run(tmp_path, Judges(fail={"task 0"}), tasks(3))
    assert counts == {"done": 4, "correct": 4, "infra_error": 2}
    store.publish(tmp_path / "out")
    found = play.summary(tmp_path / "out")["figures"]
    assert found["episodes"] == 4 and found["left_out"] == 2 and found["pass_rate"] == 1.0 and found["reward"] == 3.0


def test_players_with_all_tools_have_a_shell_of_their_own_each(tmp_path):
    """Three episodes side by side, each of two turns: what one writes in its shell no other sees."""
    from data.store import read_trajectories

    def player(task, seed):
        turns = iter((call_text("bash", command=f"echo 'y = {seed}' > model_new.py; ls /workspace; cat model_new.py"), call_text("submit")))

        async def generate(segments, *, max_new_tokens, seed):
            return Completion(ids=None, logprobs=None, text=next(turns), finish_reason="stop", policy_version="p")

        return generate

    store, this = TrajectoryStore(tmp_path / "live", 0), job(tmp_path)
    this.params.episode = types.SimpleNamespace(**vars(CHECKED.episode) | {"view": "source", "tools": "all", "turns": 4})
    asyncio.run(play.episodes(this, tasks(3), player, judges=Judges(), store=store, checkpoint="k", tokenizer=None, samples=1, seed=1))
    store.publish(tmp_path / "out")
    found = read_trajectories(tmp_path / "out")
    if any(t.error and "namespace" in t.error for t in found):
        pytest.skip(found[0].error)
    shown = {t.turns[0].observation for t in found}
    assert len(shown) == 3 and all(t.stop == "done" and t.verdict.correct for t in found), [(t.stop, t.error) for t in found]
    assert all("exit 0" in text and "SKILL.md" in text and "y = " in text for text in shown), shown


def test_generation_and_judging_never_overlap_on_the_cpu(tmp_path):
    judges = Judges()
    run(tmp_path, judges, tasks(12), gather=8)
    assert judges.judged == 24 and judges.together == 0


@pytest.mark.parametrize("first", ["generate", "judge"])
def test_a_short_step_of_one_phase_does_not_let_the_other_in(first):
    """Lanes whose steps alternate, one phase costing nothing: the costly steps of all lanes run side by side."""
    gate, running, most = play.Gate(exclusive=True), {"generate": 0, "judge": 0}, {"generate": 0, "judge": 0}
    second = "judge" if first == "generate" else "generate"

    async def lane():
        for _ in range(3):
            for phase, seconds in ((first, 0.0), (second, 0.01)):
                async with gate.during(phase):
                    running[phase] += 1
                    most[phase] = max(most[phase], running[phase])
                    assert not (running["generate"] and running["judge"])
                    if seconds:
                        await asyncio.sleep(seconds)
                    running[phase] -= 1

    async def all_lanes():
        async with asyncio.timeout(5.0):
            await asyncio.gather(*(lane() for _ in range(8)))

    asyncio.run(all_lanes())
    assert most[second] == 8


def test_seeds_differ_by_task_and_sample_and_draws_depend_on_the_seed_alone():
    some = tasks(20)
    assert play.draw(some, 5, 1) == play.draw(list(reversed(some)), 5, 1) != play.draw(some, 5, 2)
    assert len({play.seed_of(1, task.id, sample) for task in some for sample in range(4)}) == 80
    assert len(play.draw(some, 0, 1)) == 20


def test_rejection_keeps_what_ended_well_and_was_played_sanely(tmp_path):
    import dataclasses

    _, _, store = run(tmp_path, Judges(), tasks(1), samples=1)
    store.publish(tmp_path / "out")
    (good,) = play.so_far(job(tmp_path), store)
    turn = good.turns[0]

    def changed(**values):
        return dataclasses.replace(good, **values)

    twice = (turn, dataclasses.replace(turn, index=1))
    cases = {
        None: good,
        "lost": changed(reward=None, stop="infra_error"),
        "outcome": changed(reward=1.0),
        "not_submitted": changed(stop="max_turns", turns=(turn, dataclasses.replace(turn, index=1, text="another"))),
        "cut_off": changed(turns=(dataclasses.replace(turn, finish_reason="length"),)),
        "malformed": changed(turns=(dataclasses.replace(turn, tool_calls=(ToolCall(tool="malformed", args={}),)),)),
        "repeats_itself": changed(turns=twice),
    }
    for rule, trajectory in cases.items():
        assert learn.rejected(trajectory, 2.0) == rule
    assert learn.rejected(changed(stop="max_turns"), 2.0) is None, "an agent with one turn cannot submit"


def test_a_stage_in_which_nothing_could_be_judged_fails_and_plays_again(tmp_path):
    class Broken(Judges):
        async def judge(self, *arguments, **keywords):
            raise SandboxError("no GPU")

    with pytest.raises(SandboxError, match="none of 2 episodes"):
        run(tmp_path, Broken(), tasks(2), samples=1)
    _, _, store = run(tmp_path, Judges(), tasks(2), samples=1)
    assert len(store.finished()) == 2
