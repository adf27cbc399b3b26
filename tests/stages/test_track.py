"""What the stages publish arrives in MLflow once, by reference, also after an outage; and an outage stops nothing."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from data.journal import read_lines
from policy import registry
from stages import track

ROOT = pathlib.Path(__file__).parents[2]


def checkpoint(name, kind, round, parent):
    digest = (name * 40)[:64]
    return {"weights": digest, "parent": parent, "kind": kind, "round": round, "path": f"artifacts/checkpoints/{name}", "tokenizer": "t" * 64, "template": "c" * 64}


def publish(root, players):
    """Published files as the stages write them."""
    for order, (name, kind, round, rate) in enumerate(players):
        folder = root / "artifacts/eval" / name
        folder.mkdir(parents=True, exist_ok=True)
        figures = {"pass_rate": rate, "pass_rate_low": rate - 0.1, "pass_rate_high": rate + 0.1, "faster_eager": rate / 2, "speedup_eager": 1.5, "reward": None}
        record = checkpoint(name, kind, round, None) if kind else None
        (folder / "results.json").write_text(json.dumps({"player": name, "order": order, "time": 1000.0 + order, "checkpoint": record, "figures": figures}))
    metrics = root / "artifacts/metrics"
    metrics.mkdir(parents=True, exist_ok=True)
    journal = [{"time": 900.0 + i, "step": i, "loss": 1.0 / (i + 1), "note": "text"} for i in range(5)]
    (metrics / "update-r01.json").write_text(json.dumps({"stage": "update@r01", "finished": 950.0, "seconds": 40.0, "figures": {"kl": 0.1}, "journal": journal}))
    lock = "stages: {update@r01: {params: {params.yaml: {update: {lr: 0.1}}}, outs: [{path: artifacts/checkpoints/r01, md5: feed.dir}]}}"
    (root / "dvc.lock").write_text(lock)


PLAYERS = [("teacher", None, 0, 0.9), ("sft", "sft", 0, 0.4), ("r01", "ppo", 1, 0.6)]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    root = tmp_path_factory.mktemp("track")
    publish(root, PLAYERS)
    registry.append(root / track.JOURNAL, track.gather(root))
    uri = f"sqlite:///{root / 'mlflow.db'}"
    count = registry.ship(root / track.JOURNAL, uri, artifacts=root / "files")
    return root, uri, count


def store(uri):
    import mlflow
    from mlflow import MlflowClient

    mlflow.set_tracking_uri(uri)
    client = MlflowClient()
    experiment = client.get_experiment_by_name(registry.EXPERIMENT).experiment_id
    models = mlflow.search_logged_models(experiment_ids=[experiment], output_format="list")
    return client, client.search_runs([experiment], max_results=1000), models


def test_every_checkpoint_is_one_logged_model_with_its_figures_and_origin(shipped):
    root, uri, count = shipped
    assert count == 4  # one run, two checkpoints, the alias
    _client, _, models = store(uri)
    assert {model.name for model in models} == {"policy-sft", "policy-r01"}
    r01 = next(model for model in models if model.name == "policy-r01")
    metrics = {metric.key: metric.value for metric in r01.metrics}
    assert metrics == {"pass_rate": 0.6, "pass_rate_low": 0.5, "pass_rate_high": 0.7, "faster_eager": 0.3, "speedup_eager": 1.5}
    assert r01.tags["dvc.md5"] == "feed.dir" and r01.tags["dvc.path"] == "artifacts/checkpoints/r01" and "git.commit" in r01.tags
    assert not list((root / "files").rglob("*.safetensors"))


def test_the_last_round_is_the_candidate(shipped):
    _, uri, _ = shipped
    found = registry.candidate(uri)
    assert found["tags"][registry.CHECKPOINT] == checkpoint("r01", "ppo", 1, None)["weights"][:16] and found["metrics"]["pass_rate"] == 0.6


def test_a_stage_is_a_run_with_its_curves_and_params(shipped):
    _, uri, _ = shipped
    client, runs, _ = store(uri)
    run = next(run for run in runs if run.info.run_name == "update@r01")
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.timestamp) for point in sorted(history, key=lambda p: p.step)] == [(i, 900000 + 1000 * i) for i in range(5)]
    assert run.data.params["update.lr"] == "0.1" and run.data.metrics["seconds"] == 40.0 and run.info.status == "FINISHED"


def test_shipping_again_and_after_a_lost_receipt_makes_nothing_twice(shipped):
    root, uri, _ = shipped
    _client, runs, models = store(uri)
    assert registry.append(root / track.JOURNAL, track.gather(root)) == 0
    assert registry.ship(root / track.JOURNAL, uri) == 0
    receipts = root / "artifacts/tracking/shipped.jsonl"
    receipts.write_text("")
    assert registry.ship(root / track.JOURNAL, uri) == 4
    again, runs2, models2 = store(uri)
    assert len(runs2) == len(runs) and len(models2) == len(models)
    run = next(run for run in runs2 if run.info.run_name == "update@r01")
    assert len(again.get_metric_history(run.info.run_id, "loss")) == 5
    assert len(again.search_model_versions(f"name='{registry.MODEL}'")) == 2
    r01 = next(model for model in models2 if model.name == "policy-r01")
    assert len([metric for metric in r01.metrics if metric.key == "pass_rate"]) == 1


def test_a_new_last_round_takes_the_alias_and_going_back_gives_it_back(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def sync(players):
        publish(tmp_path, players)
        registry.append(tmp_path / track.JOURNAL, track.gather(tmp_path))
        registry.ship(tmp_path / track.JOURNAL, uri, artifacts=tmp_path / "files")
        return registry.candidate(uri)["tags"]["dvc.path"]

    assert sync(PLAYERS).endswith("r01")
    assert sync([*PLAYERS, ("r02", "ppo", 2, 0.7)]).endswith("r02")
    subprocess.run(["rm", "-r", tmp_path / "artifacts/eval/r02"], check=True)
    assert sync(PLAYERS).endswith("r01")


def test_an_outage_keeps_everything_in_the_journal_and_costs_seconds(tmp_path):
    publish(tmp_path, PLAYERS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "stages.track"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "not reached" in done.stdout and time.monotonic() - started < 60
    assert len(read_lines(tmp_path / track.JOURNAL)) == 4
    environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path / 'later.db'}"
    done = subprocess.run([sys.executable, "-m", "stages.track"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "4 entries shipped" in done.stdout, done.stdout + done.stderr


def test_a_journal_cut_by_a_kill_loses_only_the_cut_line(tmp_path):
    journal = tmp_path / "journal.jsonl"
    registry.append(journal, [{"key": "a", "kind": "run"}, {"key": "b", "kind": "run"}])
    journal.write_bytes(journal.read_bytes()[:-8])
    assert [entry["key"] for entry in read_lines(journal)] == ["a"]
    assert registry.append(journal, [{"key": "a", "kind": "run"}, {"key": "b", "kind": "run"}]) == 1
    assert [entry["key"] for entry in read_lines(journal)] == ["a", "b"]


def test_no_answer_at_all_is_cut_off(tmp_path, monkeypatch):
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/__init__.py").touch()
    (tmp_path / "stages/track.py").write_text("import time; time.sleep(60)")
    started = time.monotonic()
    assert "took more than" in track.in_background(tmp_path, seconds=1.0)
    assert time.monotonic() - started < 10
