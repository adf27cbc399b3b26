from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from data.records import (
    Baselines,
    Candidate,
    Checkpoint,
    Record,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
    content_id,
)
from tests.data.examples import trajectory_of, verdict_of

ROOT = pathlib.Path(__file__).parents[2]

CHECKPOINT = {"weights": "ab" * 32, "parent": None, "kind": "base", "round": 0, "path": "p", "tokenizer": "t", "template": "m"}
RECORDS = [
    Baselines(eager_ms=1.0, compile_ms=None, environment={"cores": 2}),
    Task(source="s", origin="user", baselines=Baselines(eager_ms=1.0, compile_ms=2.0, environment={}), operators=("relu",), split="test"),
    Candidate(format="plan", files={"plan.json": "{}"}),
    verdict_of(),
    verdict_of("rejected", flags=("undecided", "launch_bound"), kernels=("k",), stages_s={"build": 0.1}),
    ToolCall(tool="write", args={"path": "a", "deep": [1, {"b": None}]}),
    trajectory_of(),
    Checkpoint(**CHECKPOINT),
    ToolResult(text="ok", verdict=verdict_of(), done=True),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_every_record_comes_back_from_its_json(record):
    plain = json.loads(json.dumps(record.to_dict()))
    assert type(record).from_dict(plain) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_records_are_frozen_and_keyword_only(record):
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, None)
    with pytest.raises(TypeError):
        type(record)("positional")


def test_unknown_keys_are_refused_by_name():
    with pytest.raises(ValueError, match=r"Task: got \['colour'\]"):
        Task.from_dict({"source": "s", "origin": "user", "colour": "red"})


def test_tuples_of_records_and_statuses_come_back_as_themselves():
    back = Trajectory.from_dict(trajectory_of().to_dict())
    assert isinstance(back.turns, tuple) and isinstance(back.turns[0], Turn)
    assert isinstance(back.turns[0].action_ids, tuple) and isinstance(back.turns[0].tool_calls[0], ToolCall)
    assert back.verdict.status is Status.CORRECT and isinstance(back.verdict.speedup["eager"], tuple)


def test_what_is_measured_later_never_changes_an_id():
    task = Task(source="s", origin="user")
    later = dataclasses.replace(
        task, origin="synthetic", split="test", regime="odd", operators=("relu",), floor_ms=1.0, baselines=RECORDS[0]
    )
    assert later.id == task.id
    checkpoint = Checkpoint(**CHECKPOINT)
    assert dataclasses.replace(checkpoint, path="elsewhere", round=3, parent="x").id == checkpoint.id
    trajectory = trajectory_of()
    assert dataclasses.replace(trajectory, turns=(), reward=-1.0, verdict=None, candidate=None).id == trajectory.id


@pytest.mark.parametrize("change", [{"source": "other"}, {"mode": "train"}, {"precision": "bf16"}])
def test_a_task_id_follows_source_mode_and_precision(change):
    task = Task(source="s", origin="user")
    assert dataclasses.replace(task, **change).id != task.id


@pytest.mark.parametrize("change", [{"task": "u"}, {"checkpoint": "l"}, {"stage": "collect"}, {"round": 9}, {"sample": 9}])
def test_a_trajectory_id_follows_task_checkpoint_stage_round_and_sample(change):
    assert dataclasses.replace(trajectory_of(), **change).id != trajectory_of().id


def test_a_candidate_id_follows_format_and_files_but_not_their_order():
    one = Candidate(format="cupy", files={"a.py": "1", "b.py": "2"})
    assert one.id == Candidate(format="cupy", files={"b.py": "2", "a.py": "1"}).id
    assert one.id != Candidate(format="triton", files=one.files).id
    assert one.id != Candidate(format="cupy", files={"a.py": "1", "b.py": "3"}).id


def test_turn_ids_differ_by_index_and_trajectory():
    assert len({trajectory_of(s).turn_id(i) for s in range(2) for i in range(2)}) == 4


def test_two_verdicts_on_the_same_files_are_two_facts():
    assert verdict_of().id != verdict_of().id
    assert len(content_id("a")) == 16


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mode": "test"}, "mode: got 'test', wanted eval or train"),
        ({"precision": "fp8"}, "precision: got 'fp8'"),
        ({"split": "dev"}, "split: got 'dev'"),
    ],
)
def test_a_task_refuses_unknown_choices(fields, said):
    with pytest.raises(ValueError, match=said):
        Task(source="s", origin="user", **fields)


@pytest.mark.parametrize("name", ["/etc/passwd", "../up.py", "a/../../b", "a/..", ""])
def test_a_candidate_refuses_file_names_outside_its_folder(name):
    with pytest.raises(ValueError, match="file name: got"):
        Candidate(format="cupy", files={name: ""})


def test_a_candidate_refuses_unknown_formats():
    with pytest.raises(ValueError, match="format: got 'rust'"):
        Candidate(format="rust", files={})


@pytest.mark.parametrize(
    ("status", "fields", "said"),
    [
        ("correct", {"times_ms": None}, "times_ms"),
        ("incorrect", {"times_ms": {"candidate": 1.0}}, "times_ms"),
        ("incorrect", {"speedup": {"eager": (1, 1, 1)}}, "speedup"),
        ("timeout", {"device_ms": {"candidate": 1.0}}, "speedup"),
        ("correct", {"reason": "but"}, "reason"),
        ("incorrect", {"reason": None}, "reason"),
        ("rejected", {"rule": None}, "rule"),
        ("correct", {"times_ms": {"candidate": 0.0}}, r"times_ms\[candidate\]"),
        ("correct", {"times_ms": {"candidate": -1.0}}, r"times_ms\[candidate\]"),
        ("correct", {"times_ms": {"candidate": float("nan")}}, r"times_ms\[candidate\]"),
        ("correct", {"times_ms": {"candidate": float("inf")}}, r"times_ms\[candidate\]"),
        ("correct", {"speedup": {"eager": (2.0, 1.0, 3.0)}}, r"speedup\[eager\]"),
        ("correct", {"speedup": {"eager": (1.0, 3.0, 2.0)}}, r"speedup\[eager\]"),
        ("correct", {"speedup": {"eager": (0.0, 1.0, 2.0)}}, r"speedup\[eager\]"),
        ("correct", {"speedup": {"eager": (1.0, 1.0, float("inf"))}}, r"speedup\[eager\]"),
        ("correct", {"speedup": {"compile": (1.0, 1.0)}}, r"speedup\[compile\]"),
        ("correct", {"backend": "tpu"}, "backend"),
        ("correct", {"policy": "anything"}, "policy"),
        ("correct", {"track": "bf16"}, "track"),
    ],
)
def test_a_verdict_that_contradicts_itself_cannot_be_built(status, fields, said):
    with pytest.raises(ValueError, match=f"^{said}: got"):
        verdict_of(status, **fields)


def test_a_verdict_refuses_an_unknown_status():
    with pytest.raises(ValueError, match="maybe"):
        verdict_of("maybe")


def test_a_correct_verdict_below_the_clock_has_times_and_no_speedup():
    verdict = verdict_of(speedup=None, flags=("below_resolution",))
    assert verdict.correct and not verdict.faster_than("eager")


@pytest.mark.parametrize(("low", "margin", "faster"), [(1.0, 0.0, False), (1.001, 0.0, True), (1.05, 0.05, False), (1.06, 0.05, True)])
def test_faster_than_asks_the_low_end_of_the_interval(low, margin, faster):
    verdict = verdict_of(speedup={"eager": (low, 9.0, 9.0)})
    assert verdict.faster_than("eager", margin) is faster
    assert not verdict.faster_than("compile", margin)


def test_a_turn_refuses_logprobs_that_do_not_fit_its_tokens():
    with pytest.raises(ValueError, match="action_logprobs: got 1, wanted 2 values"):
        Turn(index=0, action_ids=(1, 2), action_logprobs=(-0.5,))
    with pytest.raises(ValueError, match="not finite"):
        Turn(index=0, action_ids=(1,), action_logprobs=(float("-inf"),))
    assert Turn(index=0, action_ids=(1,)).action_logprobs is None


def test_a_trajectory_refuses_gaps_unknown_stops_and_rewarded_accidents():
    with pytest.raises(ValueError, match=r"turns: got \[1\]"):
        dataclasses.replace(trajectory_of(), turns=trajectory_of().turns[1:])
    with pytest.raises(ValueError, match="stop: got 'tired'"):
        dataclasses.replace(trajectory_of(), stop="tired")
    with pytest.raises(ValueError, match=r"reward: got 3\.0, wanted None after infra_error"):
        dataclasses.replace(trajectory_of(), stop="infra_error")


def test_a_checkpoint_refuses_an_unknown_kind():
    with pytest.raises(ValueError, match="kind: got 'best'"):
        Checkpoint(**CHECKPOINT | {"kind": "best"})


def test_records_need_nothing_but_the_standard_library():
    code = "import sys, data.records; print(sorted(m for m in sys.modules if m.split('.')[0] not in sys.stdlib_module_names))"
    out = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert set(eval(out)) <= {"data", "data.records", "__main__"}


def test_every_record_class_is_tested_here():
    covered = {type(r) for r in RECORDS} | {Turn}
    assert {c for c in Record.__subclasses__() if c.__module__ == "data.records"} == covered
    assert Verdict in covered
