"""The table says what ran and what runs, whoever else watches."""

import json

import pytest

from data.journal import read_lines
from stages import status
from stages.stage import Job

DVC = """
stages:
  first: {cmd: x, outs: [artifacts/first], metrics: [artifacts/metrics/first.json]}
  second: {cmd: x, deps: [artifacts/first], outs: [artifacts/second]}
  third: {cmd: x, deps: [artifacts/second], outs: [artifacts/third]}
"""


@pytest.mark.parametrize("flow", [False, True])
def test_a_running_stage_is_seen_also_while_a_flow_watches_it(tmp_path, monkeypatch, flow):
    (tmp_path / "dvc.yaml").write_text(DVC)
    (tmp_path / "params.yaml").write_text("{}")
    (tmp_path / "artifacts/metrics").mkdir(parents=True)
    (tmp_path / "artifacts/first").touch()
    (tmp_path / "artifacts/metrics/first.json").write_text(json.dumps({"seconds": 12.4, "headline": "all kept"}))
    monkeypatch.delenv("CUDA_AGENT_EVENTS", raising=False)
    events = tmp_path / "flow" / "events.jsonl"
    if flow:
        monkeypatch.setenv("CUDA_AGENT_EVENTS", str(events))
    Job(name="second", key=None, params=None, work=tmp_path / "work/second/0", root=tmp_path).progress(3, 20, "steps")
    first, second, third = status.rows(tmp_path)
    assert first == ("first", "12", "all kept") and third == ("third", "-", "not run")
    assert second[:2] == ("second", "-") and second[2].startswith("at 3/20 steps, ")
    assert [row["done"] for row in read_lines(events)] == ([3] if flow else [])
