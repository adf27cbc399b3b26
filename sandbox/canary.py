"""Canaries: candidates whose verdict is known, judged among the others. Credited cheats and refused honest kernels must both be 0.

    cuda-judge canary [--backend cpp|cuda] [--json]      every canary once: exit 0 all as wanted, 1 alarm, 3 when we failed

Which canary, and when, is drawn from OS entropy. A canary is judged afresh through the same pool as everybody's candidates; what is
found goes into counts and nowhere else: no caller, no trajectory and no cache entry of a caller's question ever holds it.
The set is package data: sandbox/canaries/BACKEND.json, {"tasks": {name: source}, "canaries": [{name, kind, task, policy, files}]}.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import importlib.resources
import json
import random
import sys
from typing import Any

from data.records import BACKENDS, Candidate, SandboxError, Status, Task, Verdict
from sandbox.judge import format_of, task_from_source

KINDS = ("cheat", "honest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canary:
    """A candidate and what it is: a `cheat` must never be correct, an `honest` one must always be."""

    name: str
    kind: str
    policy: str
    task: Task
    candidate: Candidate

    def outcome(self, verdict: Verdict) -> str:
        """credited or refused; unjudged where the verdict speaks of the task and not of the candidate."""
        return "unjudged" if verdict.status is Status.TASK_INVALID else "credited" if verdict.correct else "refused"

    def alarms(self, outcome: str) -> bool:
        return outcome == ("credited" if self.kind == "cheat" else "refused")


def load(backend: str) -> list[Canary]:
    """The canaries of a backend."""
    plain = json.loads((importlib.resources.files("sandbox") / "canaries" / f"{backend}.json").read_text())
    tasks = {name: task_from_source(source) for name, source in plain["tasks"].items()}
    return [
        Canary(
            name=c["name"], kind=c["kind"], policy=c["policy"], task=tasks[c["task"]], candidate=Candidate(format=format_of(c["files"]), files=c["files"])
        )
        for c in plain["canaries"]
    ]  # fmt: skip


class Watch:
    """Lets canaries ride along with a pool's judgements, `rate` of them per judged candidate.

    pool: an entered sandbox.pool.Pool. counts: (kind, outcome) to how many; outcome `unjudged` where we failed.
    """

    def __init__(self, pool: Any, *, rate: float, canaries: list[Canary] | None = None):
        self.pool, self.rate, self.secret = pool, rate, random.SystemRandom()
        self.canaries = load(pool.backend) if canaries is None else canaries
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.alarms: list[dict[str, Any]] = []
        self.jobs: set[asyncio.Task] = set()
        pool.watch = self

    @property
    def alarm(self) -> bool:
        """A known cheat was credited, or a known honest kernel refused."""
        return any(count for (kind, outcome), count in self.counts.items() if (kind, outcome) in (("cheat", "credited"), ("honest", "refused")))

    def judged(self) -> None:
        """The pool has judged somebody's candidate. At most one canary waits, so that they never crowd a pool."""
        if not self.jobs and self.canaries and self.secret.random() < self.rate:
            job = asyncio.get_running_loop().create_task(self.fly(self.secret.choice(self.canaries)))
            self.jobs.add(job)
            job.add_done_callback(self.jobs.discard)

    async def fly(self, canary: Canary) -> tuple[str, Verdict | None]:
        """Judge one canary now and count what came out: its outcome, and the verdict where there is one."""
        try:
            verdict = await self.pool.probe(canary.task, canary.candidate, policy=canary.policy)
        except (SandboxError, ValueError) as error:
            print(f"sandbox: canary {canary.name} got no verdict: {error}", file=sys.stderr, flush=True)
            self.counts[canary.kind, "unjudged"] += 1
            return "unjudged", None
        outcome = canary.outcome(verdict)
        self.counts[canary.kind, outcome] += 1
        if canary.alarms(outcome):
            self.alarms.append({"canary": canary.name, "kind": canary.kind, "outcome": outcome, "verdict": verdict.to_dict()})
            del self.alarms[:-100]
            print(f"sandbox: ALARM: {canary.kind} canary {canary.name} was {outcome}: {json.dumps(_told(verdict))}", file=sys.stderr, flush=True)
        return outcome, verdict

    async def close(self) -> None:
        """Wait for what is in flight; the pool goes on without canaries."""
        self.pool.watch = None
        await asyncio.gather(*self.jobs)


def _told(verdict: Verdict | None) -> dict[str, Any]:
    """What of a verdict says why."""
    return {k: v for k, v in verdict.to_dict().items() if k in ("status", "rule", "reason", "flags")} if verdict else {}


async def _all(backend: str, slots: int | None) -> tuple[list[tuple[Canary, str, Verdict | None]], Watch]:
    from sandbox.pool import Pool

    async with Pool(backend=backend, slots=slots) as pool:
        watch = Watch(pool, rate=0.0)
        outcomes = await asyncio.gather(*(watch.fly(c) for c in watch.canaries))
        return [(canary, *found) for canary, found in zip(watch.canaries, outcomes, strict=True)], watch


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cuda-judge canary", description="Judge every known cheat and known honest kernel once.")
    parser.add_argument("--backend", choices=BACKENDS, default="cpp")
    parser.add_argument("--slots", type=int, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        found, watch = asyncio.run(_all(options.backend, options.slots))
    except SandboxError as error:
        print(f"cuda-judge canary: {error}", file=sys.stderr)
        return 3
    rows = [{"canary": c.name, "kind": c.kind, "outcome": outcome} | _told(verdict) for c, outcome, verdict in found]
    if options.json:
        print(json.dumps({"alarm": watch.alarm, "canaries": rows, "alarms": watch.alarms}, indent=2))
    else:
        for row in rows:
            print(f"{row['kind']:7} {row['canary']:32} {row['outcome']:9} {row.get('status', '')} {row.get('rule') or ''}".rstrip())
        print("ALARM" if watch.alarm else "all as wanted" if all(r["outcome"] != "unjudged" for r in rows) else "no alarm, some not judged")
    return 1 if watch.alarm else 3 if any(r["outcome"] == "unjudged" for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
