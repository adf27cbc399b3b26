"""Figures over finished episodes: rates over all of them, speed-ups over the correct ones, 95 % intervals by bootstrap over tasks.

Episodes of one task are no independent draws, so whole tasks are resampled (the cluster bootstrap). An episode that we lost
(`infra_error`) or whose task turned out invalid is left out and counted. It judges nothing itself.
"""

from __future__ import annotations

import collections
import json
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from data.records import Checkpoint, Task, Trajectory

RESAMPLES = 2000


def figures(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Flat numbers. Rates: pass_rate, faster_eager, faster_compile (low end of the interval above 1), solved (share of tasks).
    Geometric means over correct, timed episodes: speedup_eager, speedup_compile. Each with _low and _high."""
    import numpy

    counted = [t for t in trajectories if t.stop != "infra_error" and not (t.verdict and t.verdict.status == "task_invalid")]
    found: dict[str, float | None] = {"episodes": len(counted), "left_out": len(trajectories) - len(counted)}
    if not counted:
        return found
    tasks = sorted({t.task for t in counted})
    row = {task: index for index, task in enumerate(tasks)}
    # [tasks] sums per task of each quantity; a rate is the sum over tasks divided by the episodes.
    totals = {name: numpy.zeros(len(tasks)) for name in ("episodes", "pass_rate", "faster_eager", "faster_compile")}
    totals |= {f"{part}_{base}": numpy.zeros(len(tasks)) for part in ("log", "timed") for base in ("eager", "compile")}
    for t in counted:
        at = row[t.task]
        totals["episodes"][at] += 1
        if not (t.verdict and t.verdict.correct):
            continue
        totals["pass_rate"][at] += 1
        for base in ("eager", "compile"):
            totals[f"faster_{base}"][at] += t.verdict.faster_than(base)
            if t.verdict.speedup and base in t.verdict.speedup:
                totals[f"log_{base}"][at] += math.log(t.verdict.speedup[base][1])
                totals[f"timed_{base}"][at] += 1
    draws = numpy.random.default_rng(0).integers(0, len(tasks), (RESAMPLES, len(tasks)))
    for name, above, below, shape in (
        ("pass_rate", "pass_rate", "episodes", float),
        ("faster_eager", "faster_eager", "episodes", float),
        ("faster_compile", "faster_compile", "episodes", float),
        ("speedup_eager", "log_eager", "timed_eager", math.exp),
        ("speedup_compile", "log_compile", "timed_compile", math.exp),
    ):
        if not totals[below].sum():
            continue
        found[name] = shape(totals[above].sum() / totals[below].sum())
        tops, bottoms = totals[above][draws].sum(1), totals[below][draws].sum(1)
        low, high = numpy.percentile(tops[bottoms > 0] / bottoms[bottoms > 0], (2.5, 97.5))
        found[f"{name}_low"], found[f"{name}_high"] = shape(low), shape(high)
    found["solved"] = float((totals["pass_rate"] > 0).mean())
    found["turns"] = sum(len(t.turns) for t in counted) / len(counted)
    found["action_tokens"] = sum(len(turn.action_ids) for t in counted for turn in t.turns) / len(counted)
    rewards = [t.reward for t in counted if t.reward is not None]
    found["reward"] = sum(rewards) / len(rewards) if rewards else None
    return found


def results(player: str, order: int, checkpoint: Checkpoint | None, tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What evaluation publishes: figures, counts by status, one row an episode. `order` sorts players in tables."""
    named = {task.id: task for task in tasks}
    statuses = collections.Counter(str(t.verdict.status) if t.verdict else t.stop if t.stop == "infra_error" else "no candidate" for t in trajectories)
    return {
        "player": player,
        "order": order,
        "time": round(time.time(), 3),
        "checkpoint": checkpoint and checkpoint.to_dict(),
        "figures": figures(trajectories),
        "statuses": dict(statuses.most_common()),
        "episodes": [_row(named[t.task], t) for t in trajectories],
    }


def _row(task: Task, t: Trajectory) -> dict[str, Any]:
    verdict = t.verdict
    return {
        "trajectory": t.id,
        "task": t.task,
        "operators": list(task.operators),
        "sample": t.sample,
        "stop": t.stop,
        "turns": len(t.turns),
        "reward": t.reward,
        "status": verdict and str(verdict.status),
        "reason": verdict and verdict.reason,
        "flags": list(verdict.flags) if verdict else [],
        "speedup": verdict and verdict.speedup,
        "times_ms": verdict and verdict.times_ms,
    }


def headline(found: dict[str, float | None]) -> str:
    """The line for the closing table."""
    if "pass_rate" not in found:
        return f"no episode counted, {found['left_out']} left out"
    speed = f", {found['speedup_eager']:.2f}x eager" if found.get("speedup_eager") else ""
    return f"{found['pass_rate']:.0%} correct, {found['faster_eager']:.0%} faster than eager, {found['faster_compile']:.0%} than compile{speed} ({found['episodes']} episodes)"


def write(path: pathlib.Path, body: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
