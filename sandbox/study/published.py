"""Published kernels judged again: credited or not and why, and what is left of the claimed speed-up.

    python -m sandbox.study.published --kernels published.jsonl --out FOLDER --seconds 400 --backend cuda
    python -m sandbox.study.published --kernels published.jsonl --out FOLDER --static      # no GPU: formats, claims, static rules

The file is made by `python -m sandbox.study.collect`. What the policy refuses is judged again under `mixed`, which asks only whether
it is right and how fast.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import sys
import time

from data.records import Candidate, SandboxError, Task
from sandbox.backends import Failed, Limits
from sandbox.check import check_candidate
from sandbox.study.run import Study, figure, geometric_mean, parser, start

LIMITS = Limits(call_s=20.0, build_s=180.0, compile_s=0.0, total_s=240.0, memory_bytes=16 << 30)
LEAST = 60


def entries(path: str) -> list[dict]:
    """Lines of `collect`. Raises ValueError naming the line."""
    found = []
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--kernels: {path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
            found.append(row | {"task": Task.from_dict(row["task"]), "candidate": Candidate.from_dict(row["candidate"])})
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: got {type(error).__name__} {error}, wanted a line of sandbox.study.collect") from error
    return found


def static(row: dict, backend: str) -> dict:
    """What the static rules of `libraries_allowed` say of a candidate."""
    try:
        check_candidate(row["candidate"], policy="libraries_allowed", backend=backend)
    except Failed as failed:
        return {"static": failed.status.value, "static_rule": failed.rule, "static_reason": str(failed)[:200]}
    return {"static": "passes", "static_rule": None, "static_reason": None}


async def work(study: Study) -> tuple[list[dict], bool]:
    kernels, options = entries(study.options.kernels), study.options
    if options.static:
        for row in kernels:
            if not study.has(f"static/{row['key']}"):
                study.add(f"static/{row['key']}", **facts(row), **static(row, options.backend))
        return figures(study, kernels, "static"), True
    # One task after another, so that what is made ready is used by all of its candidates
    todo = sorted((row for row in kernels if not study.has(f"kernel/{row['key']}")), key=lambda row: row["order"])
    longest = 5.0
    async with study.pool(limits=LIMITS) as pool:
        while todo and study.left() > longest:
            row, begin = todo.pop(0), time.monotonic()
            await one(study, pool, row)
            longest = max(longest, min(60.0, time.monotonic() - begin))
    return figures(study, kernels, "kernel"), not todo


def facts(row: dict) -> dict:
    return {k: row[k] for k in ("source", "problem", "claim", "claim_on")} | {"format": row["candidate"].format}


async def one(study: Study, pool, row: dict) -> None:
    begin, found = time.monotonic(), facts(row) | static(row, study.options.backend)
    try:
        for policy in ("libraries_allowed", "mixed"):
            verdict = await pool.judge(row["task"], row["candidate"], fresh=True, policy=policy)
            found[policy] = {
                "status": verdict.status.value, "rule": verdict.rule, "reason": (verdict.reason or "")[:300], "flags": list(verdict.flags),
                "eager": verdict.speedup and list(verdict.speedup["eager"]), "compile": verdict.speedup and list(verdict.speedup.get("compile", ())),
            }  # fmt: skip
            if verdict.status.value != "rejected":
                break
    except SandboxError as error:
        found["sandbox_error"] = str(error)[:300]
    study.add(f"kernel/{row['key']}", **found, seconds=round(time.monotonic() - begin, 3))


def figures(study: Study, kernels: list[dict], kind: str) -> list[dict]:
    rows, names = study.of(kind), {row["key"] for row in kernels}
    rows = [r for r in rows if r["key"].removeprefix(kind + "/") in names]
    claims = [r["claim"] for r in rows if r["claim"]]
    refused = collections.Counter(f"{r['static']}/{r['static_rule']}" for r in rows if r["static"] != "passes")
    found = [
        figure("published kernels looked at", len(rows), f"at least {LEAST}", len(rows) >= LEAST or None, of=len(kernels), sources=dict(collections.Counter(r["source"] for r in rows))),
        figure("refused by the static rules of libraries_allowed", sum(refused.values()), None, None, rules=dict(refused)),
        figure("claimed speed-up, geometric mean", geometric_mean(claims), None, None, claims=len(claims)),
    ]
    if kind == "static":
        return found
    credited = [r for r in rows if r.get("libraries_allowed", {}).get("status") == "correct"]
    right = [r for r in rows if (r.get("mixed") or r.get("libraries_allowed") or {}).get("status") == "correct"]
    pairs = [(r["claim"], (r.get("mixed") or r["libraries_allowed"])["eager"][1]) for r in right if r["claim"] and (r.get("mixed") or r["libraries_allowed"])["eager"]]
    why = collections.Counter(
        "/".join(filter(None, (v["status"], v["rule"]))) for r in rows if (v := r.get("libraries_allowed")) and v["status"] != "correct"
    )
    errors = [r["key"] for r in rows if "sandbox_error" in r]
    return [
        *found,
        figure("credited under libraries_allowed", f"{len(credited)} of {len(rows)}", None, None, why_not=dict(why)),
        figure("right at all (mixed)", f"{len(right)} of {len(rows)}", None, None),
        figure("of those right: claimed and surviving speed-up over eager, geometric means", [geometric_mean([c for c, _ in pairs]), geometric_mean([s for _, s in pairs])], None, None, kernels=len(pairs)),
        figure("of those right: faster than eager (low end above 1)", sum((r.get("mixed") or r["libraries_allowed"])["eager"][0] > 1 for r in right if (r.get("mixed") or r["libraries_allowed"])["eager"]), None, None),
        figure("SandboxErrors", len(errors), "0", not errors, which=errors[:20]),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    options = parser("published", __doc__.splitlines()[0], seconds=400)
    options.add_argument("--kernels", required=True, metavar="FILE", help="JSON lines of sandbox.study.collect")
    options.add_argument("--static", action="store_true", help="only the static rules and the claims: needs no GPU")
    chosen = options.parse_args(arguments)
    return start(lambda o: Study(o, setting={"backend": chosen.backend, "limits": dataclasses.asdict(LIMITS), "static": chosen.static}), work, chosen)


if __name__ == "__main__":
    sys.exit(main())
