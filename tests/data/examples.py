"""Records to store and query: small, complete, with every optional field met at least once."""

from __future__ import annotations

from data.records import Candidate, ToolCall, Trajectory, Turn, Verdict

SOURCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 0.5


def get_inputs():
    return [torch.randn(64, 32)]


def get_init_inputs():
    return []
"""


def verdict_of(status: str = "correct", *, speed: float = 1.5, task: str = "t0", candidate: str = "c0", **more) -> Verdict:
    fields: dict = {"status": status, "task": task, "candidate": candidate, "backend": "cpp", "policy": "libraries_allowed"}
    if status == "correct":
        fields["times_ms"] = {"candidate": 1.0 / speed, "eager": 1.0, "compile": 0.8}
        fields["speedup"] = {"eager": (speed * 0.98, speed, speed * 1.02), "compile": (speed * 0.78, speed * 0.8, speed * 0.82)}
    else:
        fields["reason"] = f"{status}: element 3: got 1.0, wanted 2.0\nmore"
        if status == "rejected":
            fields["rule"] = "tampering"
    return Verdict(**(fields | more))


def trajectory_of(
    sample: int = 0,
    *,
    task: str = "t0",
    round: int = 1,
    status: str = "correct",
    speed: float = 1.5,
    stage: str = "evaluate",
    checkpoint: str = "k0",
    reward: float | None = 3.0,
) -> Trajectory:
    candidate = Candidate(
        format="cuda_extension", files={"kernels/kernel.cpp": f"// {task} {sample} {speed}", "model_new.py": "import torch"}
    )
    first = Turn(
        index=0,
        prompt_ids=(1, 2, 3),
        action_ids=(4, 5),
        action_logprobs=(-0.1, -2.5),
        observation_ids=(6,),
        text="<write>",
        observation="compiled",
        tool_calls=(ToolCall(tool="write", args={"path": "kernels/kernel.cpp", "content": "x"}),),
        candidate=candidate,
        verdict=verdict_of("compile_error", task=task),
        policy_version="k0",
        finish_reason="stop",
        seconds={"generate": 0.5, "tools": 0.25, "judge": 1.0},
        trainable=False,
    )
    final = verdict_of(status, speed=speed, task=task, candidate=candidate.id, flags=("below_resolution",) if speed == 1 else ())
    second = Turn(
        index=1,
        action_ids=(7, 8, 9),
        text="<submit>",
        tool_calls=(ToolCall(tool="submit", args={}),),
        verdict=final,
        seconds={"other": 0.1},
    )
    return Trajectory(
        task=task,
        checkpoint=checkpoint,
        stage=stage,
        round=round,
        sample=sample,
        turns=(first, second),
        stop="done",
        verdict=final,
        candidate=candidate,
        reward=reward,
    )
