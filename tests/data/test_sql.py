from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time

import pytest

from data.records import Task
from data.sql import ask, connect, main, queries
from data.store import TrajectoryStore, write_tasks
from tests.data.examples import trajectory_of, verdict_of

ROOT = pathlib.Path(__file__).parents[2]
WANTED = [
    "best_kernels",
    "cheats_caught",
    "durations",
    "failures",
    "pass_at_k",
    "pass_rate",
    "regressions",
    "reward_by_round",
    "speedup",
    "tokens",
    "turn_counts",
]


def _publish(root: pathlib.Path, run: str, trajectories) -> None:
    store = TrajectoryStore(root / "live" / run, trajectories[0].round)
    for trajectory in trajectories:
        store.add(trajectory)
    store.publish(root / "artifacts" / "trajectories" / run)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    """Round 1: t0 correct 2 of 4 (speeds 1.5, 4), t1 0 of 2, one task_invalid. Round 2: t0 correct 1 of 4 and slower, t1 2 of 2."""
    folder = tmp_path_factory.mktemp("sql")
    first = [
        trajectory_of(0, speed=1.5),
        trajectory_of(1, speed=4.0),
        trajectory_of(2, status="incorrect", reward=-1.0),
        trajectory_of(3, status="rejected", reward=-1.0),
        trajectory_of(0, task="t1", status="timeout", reward=-1.0),
        trajectory_of(1, task="t1", status="incorrect", reward=-1.0),
        trajectory_of(0, task="t2", status="task_invalid", reward=None),
    ]
    second = [trajectory_of(s, round=2, checkpoint="k1", status=(s and "incorrect") or "correct", speed=1.02, reward=1.0) for s in range(4)]
    second += [trajectory_of(s, round=2, checkpoint="k1", task="t1", speed=3.0) for s in range(2)]
    _publish(folder, "evaluate-r01", first)
    _publish(folder, "evaluate-r02", second)
    write_tasks(folder / "artifacts/tasks/raw/tasks.parquet", [Task(source="s", origin="user")])
    return folder / "artifacts"


def rows(query: str, root: pathlib.Path) -> list[dict]:
    columns, found = ask(query, root)
    return [dict(zip(columns, row, strict=True)) for row in found]


def test_every_wanted_query_is_there_and_says_what_it_answers():
    assert list(queries()) == WANTED
    assert all(len(text) > 20 for text in queries().values())


@pytest.mark.parametrize("query", WANTED)
def test_every_query_answers_before_anything_is_stored(query, tmp_path):
    assert ask(query, tmp_path)[1] == []


@pytest.mark.parametrize("query", WANTED)
def test_every_query_answers_over_real_files(query, root):
    assert rows(query, root)


def test_views_over_nothing_have_their_types(tmp_path):
    connection = connect(tmp_path)
    assert connection.execute("select sum(speedup_eager_median), max(round), max(len(flags)) from turns").fetchall() == [(None, None, None)]
    assert connection.execute("select action_ids, round from tokens").fetchall() == []


def test_pass_rate_counts_scored_episodes_and_says_what_it_left_out(root):
    first, second = rows("pass_rate", root)
    assert (first["run"], first["episodes"], first["excluded"], first["pass_rate"]) == ("evaluate-r01", 6, 1, pytest.approx(2 / 6))
    assert first["faster_eager"] == pytest.approx(2 / 6)
    assert (second["checkpoint"], second["round"], second["pass_rate"]) == ("k1", 2, pytest.approx(3 / 6))
    assert second["faster_eager"] == pytest.approx(2 / 6), "1.02 has a low end below 1"


def test_speedup_is_strict_and_over_all_scored_episodes(root):
    first, second = rows("speedup", root)
    assert first["eager_geomean"] == pytest.approx((1.5 * 4) ** 0.5)
    assert (first["eager_fast_1"], first["eager_fast_2"]) == (pytest.approx(2 / 6), pytest.approx(1 / 6))
    assert second["eager_fast_1_05"] == pytest.approx(2 / 6)


def test_pass_at_k_is_the_unbiased_estimate(root):
    found = {(r["run"], r["k"]): r["pass_at_k"] for r in rows("pass_at_k", root)}
    assert found["evaluate-r01", 1] == pytest.approx((2 / 4 + 0) / 2)
    assert found["evaluate-r01", 2] == pytest.approx((1 - (2 * 1) / (4 * 3) + 0) / 2)
    assert found["evaluate-r01", 4] == 1.0
    assert ("evaluate-r01", 8) not in found


def test_the_pass_at_k_macro_agrees_with_counting(root):
    from math import comb

    connection = connect(root)
    for n, c, k in [(8, 2, 1), (8, 2, 4), (8, 0, 1), (8, 8, 3), (5, 1, 5)]:
        wanted = 1 - comb(n - c, k) / comb(n, k)
        assert connection.execute(f"select pass_at_k({n}, {c}, {k})").fetchone()[0] == pytest.approx(wanted)


def test_regressions_pair_tasks_between_rounds(root):
    (found,) = rows("regressions", root)
    assert (found["task"], found["pass_before"], found["pass_after"]) == ("t0", 0.5, 0.25)
    assert (found["earlier_run"], found["later_run"]) == ("evaluate-r01", "evaluate-r02")


def test_best_kernels_gives_the_fastest_correct_text_of_each_task(root):
    found = {r["task"]: r for r in rows("best_kernels", root)}
    assert set(found) == {"t0", "t1"}
    assert found["t0"]["candidate_ms"] == 0.25 and "// t0 1 4.0" in found["t0"]["kernel"]
    assert "kernels/kernel.cpp" in found["t0"]["kernel"] and "import torch" in found["t0"]["kernel"]


def test_failures_group_reasons_by_their_first_line(root):
    found = [r for r in rows("failures", root) if r["kind"] == "final" and r["run"] == "evaluate-r01" and r["status"] == "incorrect"]
    assert [(r["times"], r["reason"]) for r in found] == [(2, "incorrect: element #: got #, wanted #")]


def test_cheats_caught_names_the_rule(root):
    assert {(r["rule"], r["kind"], r["times"]) for r in rows("cheats_caught", root)} == {
        ("tampering", "final", 1),
        ("tampering", "turn", 1),
    }


def test_rewards_tokens_turns_and_seconds_add_up(root):
    rewards = {r["round"]: r for r in rows("reward_by_round", root)}
    assert (rewards[1]["episodes"], rewards[1]["rewarded"], rewards[1]["mean_reward"]) == (7, 6, pytest.approx((3 + 3 - 4) / 6))
    tokens = rows("tokens", root)[0]
    assert (tokens["prompt_tokens"], tokens["action_tokens"], tokens["observation_tokens"], tokens["longest"]) == (21, 35, 7, 9)
    assert rows("turn_counts", root)[0]["mean_turns"] == 2
    assert rows("durations", root)[0]["generate_s"] == pytest.approx(3.5)


def test_tokens_join_turns(root):
    (found,) = rows("select sum(len(action_ids)) n, sum(n_action) m from tokens join turns using (run, trajectory, turn)", root)
    assert found["n"] == found["m"] > 0


def test_a_measured_task_hides_its_unmeasured_twin(tmp_path):
    from data.records import Baselines

    raw = Task(source="s", origin="user")
    measured = Task(source="s", origin="user", baselines=Baselines(eager_ms=2.0, compile_ms=1.0, environment={}))
    write_tasks(tmp_path / "tasks/raw/tasks.parquet", [raw])
    write_tasks(tmp_path / "tasks/selected/tasks.parquet", [measured])
    assert ask("select id, eager_ms from tasks", tmp_path)[1] == [(raw.id, 2.0)]


def test_a_broken_file_is_left_out_and_named(root, tmp_path, capsys):
    _publish(tmp_path, "evaluate-r01", [trajectory_of()])
    broken = tmp_path / "artifacts/trajectories/evaluate-r01/turns/round=1/part-001.parquet"
    broken.write_bytes(b"PAR1 half")
    assert ask("select count(*) from turns", tmp_path)[1] == [(2,)]
    assert "part-001.parquet" in capsys.readouterr().err


def test_json_output_is_a_list_of_objects(root, capsys):
    assert main(["pass_rate", "--root", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["run"] == "evaluate-r01"


@pytest.mark.parametrize("query", ["pass_rats", "pass-rate", "", "select nothing from nowhere", "selec 1", "../secret"])
def test_a_bad_query_is_one_line_and_exit_2(query, root, capsys):
    assert main([query, "--root", str(root)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "wanted" in err


def test_an_absent_root_answers_and_says_so(tmp_path, capsys):
    assert main(["pass_rate", "--root", str(tmp_path / "nowhere")]) == 0
    assert "nothing is stored" in capsys.readouterr().err


def test_help_and_list_are_quick_and_load_no_database():
    for option in ("--help", "--list"):
        start = time.perf_counter()
        code = f"import sys; sys.argv=['sql', '{option}']; from data import sql\ntry: sql.main()\nexcept SystemExit: pass\n"
        code += "assert 'duckdb' not in sys.modules and 'pyarrow' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)
        assert time.perf_counter() - start < 5


def test_flags_of_correct_verdicts_are_counted(tmp_path):
    _publish(tmp_path, "evaluate-r01", [trajectory_of(speed=1)])
    assert verdict_of().flags == ()
    found = [r for r in rows("cheats_caught", tmp_path) if r["flag"]]
    assert {(r["flag"], r["times"]) for r in found} == {("below_resolution", 1)}
