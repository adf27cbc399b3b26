"""Checkpoints and runs in MLflow, by reference: no weights are copied. The only file that imports mlflow.

Journal first: `append` puts entries into a JSON-lines file, `ship` replays what a tracking store has not taken yet. Every entry
has a key, and what it makes in the store is found again by that key, so a replay after a cut connection makes nothing twice.
An entry is one of
    {"key", "kind": "run", "name", "started", "finished", "params": {}, "tags": {}, "curves": [{"time", "step", values...}], "figures": {}}
    {"key", "kind": "checkpoint", "name", "checkpoint": {record}, "time", "step", "tags": {}, "figures": {}}
    {"key", "kind": "candidate", "checkpoint": id}
Times are seconds since 1970. It does not promote (that is a decision, not a record) and never raises into training: callers run it
in a child process with a time limit.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from typing import Any

from data.journal import append_lines, read_lines

EXPERIMENT = "cuda-agent"
MODEL = "kernel-policy"
KEY = "cuda_agent.key"
CHECKPOINT = "cuda_agent.checkpoint"


def default_uri(root: str | pathlib.Path = ".") -> str:
    """MLFLOW_TRACKING_URI, else a SQLite file under ROOT/artifacts by its absolute path."""
    given = os.environ.get("MLFLOW_TRACKING_URI")
    return given or f"sqlite:///{pathlib.Path(root).resolve() / 'artifacts' / 'mlflow' / 'mlflow.db'}"


def append(journal: str | pathlib.Path, new: Iterable[dict[str, Any]]) -> int:
    """Add the entries whose key the journal does not hold; on disk when this returns. Returns how many were new."""
    known, added = {entry["key"] for entry in read_lines(journal)}, []
    for entry in new:
        if entry["key"] not in known:
            known.add(entry["key"])
            added.append(entry)
    append_lines(journal, added, sync=True)
    return len(added)


def ship(journal: str | pathlib.Path, uri: str, *, artifacts: str | pathlib.Path | None = None) -> int:
    """Bring every entry that `uri` has not taken into MLflow, in order. Returns how many were shipped now.

    `artifacts`: folder for MLflow's own files, used when the experiment is made here and the store is SQLite. Raises
    what MLflow raises when the store cannot be reached; a later call goes on where this one ended.
    """
    journal = pathlib.Path(journal)
    if uri.startswith("sqlite:///"):
        pathlib.Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    taken_path = journal.with_name("shipped.jsonl")
    taken = {row["key"] for row in read_lines(taken_path)}
    waiting = [entry for entry in read_lines(journal) if f"{uri} {entry['key']}" not in taken]
    if not waiting:
        return 0
    store = _Store(uri, artifacts)
    for entry in waiting:
        {"run": store.ship_run, "checkpoint": store.ship_checkpoint, "candidate": store.ship_candidate}[entry["kind"]](entry)
        append(taken_path, [{"key": f"{uri} {entry['key']}"}])
    return len(waiting)


class _Store:
    """One MLflow store, every write keyed."""

    def __init__(self, uri: str, artifacts: str | pathlib.Path | None):
        import mlflow
        from mlflow import MlflowClient

        mlflow.set_tracking_uri(uri)
        self.mlflow, self.client = mlflow, MlflowClient()
        found = self.client.get_experiment_by_name(EXPERIMENT)
        place = pathlib.Path(artifacts).resolve().as_uri() if artifacts and uri.startswith("sqlite:") else None
        self.experiment = found.experiment_id if found else self.client.create_experiment(EXPERIMENT, artifact_location=place)

    def _run(self, entry: dict[str, Any], started: float) -> str:
        found = self.client.search_runs([self.experiment], filter_string=f"tags.`{KEY}` = '{entry['key']}'", max_results=1)
        if found:
            return found[0].info.run_id
        tags = {KEY: entry["key"], **{name: str(value) for name, value in entry.get("tags", {}).items()}}
        return self.client.create_run(self.experiment, start_time=int(started * 1000), tags=tags, run_name=entry["name"]).info.run_id

    def ship_run(self, entry: dict[str, Any]) -> None:
        from mlflow.entities import Metric, Param

        run = self._run(entry, entry["started"])
        points = [
            Metric(name, float(value), int(row["time"] * 1000), int(row.get("step", index)))
            for index, row in enumerate(entry["curves"])
            for name, value in row.items()
            if name not in ("time", "step") and isinstance(value, (int, float))
        ]
        points += [Metric(name, float(value), int(entry["finished"] * 1000), 0) for name, value in entry["figures"].items()]
        for start in range(0, len(points), 1000):
            # The same value with the same step and time is one point to MLflow: a replay adds nothing.
            self.client.log_batch(run, metrics=points[start : start + 1000])
        params = [Param(name, str(value)[:6000]) for name, value in entry["params"].items()]
        for start in range(0, len(params), 100):
            self.client.log_batch(run, params=params[start : start + 100])
        self.client.set_terminated(run, "FINISHED", end_time=int(entry["finished"] * 1000))

    def ship_checkpoint(self, entry: dict[str, Any]) -> None:
        record = entry["checkpoint"]
        identity = record["weights"][:16]
        run = self._run(entry, entry["time"])
        model = self._model(identity)
        tags = {CHECKPOINT: identity, **{name: str(value) for name, value in entry["tags"].items()}}
        if model is None:
            described = {name: str(record[name]) for name in ("kind", "round", "parent", "tokenizer", "template")}
            model = self.mlflow.create_external_model(
                name=f"policy-{entry['name']}",
                source_run_id=run,
                experiment_id=self.experiment,
                model_type="kernel-policy",
                params=described,
                tags=tags,
            )
        for name, value in entry["figures"].items():
            if value is not None:
                self.client.log_metric(
                    run, name, float(value), step=entry["step"], timestamp=int(entry["time"] * 1000), model_id=model.model_id
                )
        self.client.set_terminated(run, "FINISHED", end_time=int(entry["time"] * 1000))
        if self._version(model.model_id) is None:
            self.mlflow.register_model(f"models:/{model.model_id}", MODEL, tags=tags)

    def ship_candidate(self, entry: dict[str, Any]) -> None:
        model = self._model(entry["checkpoint"])
        version = model and self._version(model.model_id)
        if version is None:
            raise ValueError(f"checkpoint {entry['checkpoint']}: got no registered version, wanted its entry before the alias")
        self.client.set_registered_model_alias(MODEL, "candidate", version.version)

    def _model(self, checkpoint: str):
        query = f"tags.`{CHECKPOINT}` = '{checkpoint}'"
        found = self.mlflow.search_logged_models(experiment_ids=[self.experiment], filter_string=query, output_format="list", max_results=1)
        return found[0] if found else None

    def _version(self, model: str):
        versions = self.client.search_model_versions(f"name='{MODEL}'")
        return next((version for version in versions if version.source == f"models:/{model}"), None)


def candidate(uri: str) -> dict[str, Any]:
    """Tags and metrics of the checkpoint that the alias `candidate` names. Raises ValueError when there is none."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    mlflow.set_tracking_uri(uri)
    client = MlflowClient()
    try:
        version = client.get_model_version_by_alias(MODEL, "candidate")
    except MlflowException as error:
        raise ValueError(f"{uri}: got no version of {MODEL} with the alias candidate, wanted one (python -m stages.track)") from error
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    return {"version": version.version, "tags": dict(model.tags), "metrics": {m.key: m.value for m in model.metrics or ()}}
