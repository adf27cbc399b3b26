"""What this machine gives a judge: isolation level, clock, compiler, slots.

    cuda-judge doctor [--json]     (= python -m sandbox.doctor)

Exit 0 when verdicts can be reached, 1 when something that they need is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from data.records import SandboxError
from sandbox import backends, build, confine, slot


def examine() -> dict[str, Any]:
    """Facts of this machine. Starts one zygote and a few confined children."""
    facts: dict[str, Any] = {"user": "root" if os.geteuid() == 0 else "unprivileged", "slots": {n: _slots(n) for n in backends.FILES}}
    try:
        facts["compiler"] = build.compiler_version()
    except ValueError as error:
        facts["compiler"] = f"missing: {error}"
    from sandbox import cpp
    from sandbox.server import round_trip

    zygote, orders = slot.start_zygote("doctor", 500, {min(os.sched_getaffinity(0))})
    try:
        orders.settimeout(120)
        slot.receive_message(orders)
        slot.use_zygote(orders)
        confinement = confine.Confinement(index=500)
        probe = slot.spawn("sandbox.worker:nothing", {}, confinement=confinement)
        facts["isolation_level"], facts["isolation"] = probe.level, cpp.LEVELS[probe.level]
        report = probe.wait(10) or {}
        probe.close()
        facts["child"] = "runs" if report.get("status") == 0 else f"fails: {report.get('log', '')[-300:]}"
        empty, facts["seccomp"] = round_trip(confinement)
        facts["round_trip_us"] = round(1e3 * empty, 2)
        facts["timing"] = "tier 1: judge's clock, closed loop, ptrace stops"
    except (SandboxError, EOFError, OSError) as error:
        facts["timing"] = f"missing: {error}"
    finally:
        orders.close()
        zygote.wait()
    return facts


def _slots(name: str) -> list[str]:
    try:
        return backends.slots(name)
    except Exception as error:  # a backend that cannot even count its devices is reported, not fatal
        return [f"unavailable: {type(error).__name__}: {error}"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cuda-judge doctor", description="Isolation, clock and compiler of this machine.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    facts = examine()
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            print(f"{name:16} {value}")
    return 1 if any(str(v).startswith("missing") for v in facts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
