"""Bring what the stages published into MLflow: journal first, then ship what the store has not taken.

Reads artifacts/metrics, artifacts/eval, artifacts/checkpoints and dvc.lock; writes artifacts/tracking/journal.jsonl. The store is
MLFLOW_TRACKING_URI, else a SQLite file under artifacts/mlflow. Run it again after an outage: nothing arrives twice. Exit code 0
also when the store cannot be reached (the journal has everything), with one line that says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import yaml

from data.journal import read_lines
from policy import registry

JOURNAL = "artifacts/tracking/journal.jsonl"


def gather(root: pathlib.Path) -> list[dict[str, Any]]:
    """Journal entries for everything that stands published below ROOT, stages first, checkpoints in the order of training."""
    lock = yaml.safe_load((root / "dvc.lock").read_text()) if (root / "dvc.lock").exists() else {}
    md5s = {out["path"]: out.get("md5", "") for entry in (lock or {}).get("stages", {}).values() for out in entry.get("outs", ())}
    params_file = root / "params.yaml"
    source = {
        "git.commit": _git(root, "rev-parse", "HEAD"),
        "git.dirty": bool(_git(root, "status", "--porcelain", "-uno")),
        "params.sha256": hashlib.sha256(params_file.read_bytes()).hexdigest() if params_file.exists() else "",
    }
    source |= {tag: os.environ[name] for name, tag in (("DVC_EXP_NAME", "dvc.exp_name"), ("PREFECT__FLOW_RUN_ID", "prefect.flow_run_id")) if name in os.environ}
    rows = [_run(path, lock or {}, source) for path in sorted((root / "artifacts" / "metrics").glob("*.json"), key=_finished)]
    evaluated = []
    for path in (root / "artifacts" / "eval").glob("*/results.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["checkpoint"]:
            evaluated.append((result, path))
    evaluated.sort(key=lambda pair: (pair[0]["order"], pair[0]["player"]))
    for result, path in evaluated:
        name, record = result["player"], result["checkpoint"]
        tags = {"dvc.path": record["path"], "dvc.md5": md5s.get(record["path"], ""), "eval.dvc.md5": md5s.get(f"artifacts/eval/{name}", ""), **source}
        key = f"checkpoint {record['weights'][:16]} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
        rows.append({"key": key, "kind": "checkpoint", "name": name, "checkpoint": record, "time": result["time"], "step": record["round"],
                     "tags": tags, "figures": result["figures"]})
    rounds = [result["checkpoint"] for result, _ in evaluated if result["checkpoint"]["kind"] == "ppo"]
    return rows + _alias(root / JOURNAL, rounds[-1]["weights"][:16] if rounds else None)


def _alias(journal: pathlib.Path, last: str | None) -> list[dict[str, Any]]:
    """The entry that names the last round's checkpoint as candidate, when it is not the one that was named last."""
    named = [entry for entry in read_lines(journal) if entry["kind"] == "candidate"]
    if last is None or (named and named[-1]["checkpoint"] == last):
        return []
    return [{"key": f"candidate {len(named)} {last}", "kind": "candidate", "checkpoint": last}]


def _finished(path: pathlib.Path) -> float:
    return json.loads(path.read_text(encoding="utf-8"))["finished"]


def _run(path: pathlib.Path, lock: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    body = json.loads(path.read_text(encoding="utf-8"))
    entry = lock.get("stages", {}).get(body["stage"], {})
    params = {name: value for file in entry.get("params", {}).values() for name, value in _flat(file)}
    key = f"run {body['stage']} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    return {
        "key": key, "kind": "run", "name": body["stage"], "started": body["finished"] - body["seconds"], "finished": body["finished"],
        "params": params, "tags": {"stage": body["stage"], **source}, "curves": body["journal"],
        "figures": {"seconds": body["seconds"], **body.get("figures", {})},
    }


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows = []
    for name, value in values.items():
        rows += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return rows


def _git(root: pathlib.Path, *arguments: str) -> str:
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def in_background(root: pathlib.Path, seconds: float = 60.0) -> str:
    """Run this module in a child of its own, for at most `seconds`; what it said in one line. Never raises for the store's sake."""
    try:
        done = subprocess.run([sys.executable, "-m", "stages.track"], cwd=root, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"MLflow took more than {seconds:.0f} s; the journal {JOURNAL} keeps everything for the next `python -m stages.track`"
    return (done.stdout.strip() or done.stderr.strip() or "no word from stages.track").splitlines()[-1]


def knock(uri: str) -> None:
    """Raise OSError at once when nothing listens at an HTTP address; the client would try again for minutes."""
    import socket
    import urllib.parse
    import urllib.request

    address = urllib.parse.urlsplit(uri)
    if address.scheme in ("http", "https") and address.hostname and address.scheme not in urllib.request.getproxies():
        socket.create_connection((address.hostname, address.port or {"http": 80, "https": 443}[address.scheme]), timeout=10).close()


def main() -> None:
    """Journal and ship."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal-only", action="store_true", help="write the journal, talk to no store")
    parser.add_argument("--where", action="store_true", help="print the address of the store and leave")
    arguments = parser.parse_args()
    root = pathlib.Path(".")
    if arguments.where:
        print(registry.default_uri(root))
        return
    added = registry.append(root / JOURNAL, gather(root))
    uri = registry.default_uri(root)
    if arguments.journal_only:
        print(f"{added} new entries in {JOURNAL}")
        return
    for name, value in (("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1"), ("MLFLOW_HTTP_REQUEST_TIMEOUT", "10"), ("MLFLOW_DISABLE_TELEMETRY", "true"), ("DO_NOT_TRACK", "true")):
        os.environ.setdefault(name, value)
    try:
        knock(uri)
        shipped = registry.ship(root / JOURNAL, uri, artifacts=root / "artifacts" / "mlflow" / "files")
    except Exception as error:  # whatever the client raises: tracking must not fail a pipeline, and the journal keeps everything
        print(f"{uri}: not reached ({type(error).__name__}: {error}); {JOURNAL} keeps {added} new entries for the next `python -m stages.track`")
        return
    print(f"{shipped} entries shipped to {uri}")


if __name__ == "__main__":
    main()
