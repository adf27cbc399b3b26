"""Run the pipeline as a Prefect flow: `python -m flows.pipeline`, or `--serve` to wait for runs from the Prefect UI.

Uses the server that `make ui` started, or PREFECT_API_URL; with neither, Prefect starts one for this run. The flow itself is in
flows/repro.py; order and content of the stages come from dvc.yaml alone.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import urllib.request

UI = pathlib.Path("work/ui.json")


def find_server() -> str | None:
    """PREFECT_API_URL, set to that of a running `make ui` where it was not given."""
    if "PREFECT_API_URL" not in os.environ and UI.exists():
        address = json.loads(UI.read_text())["prefect"]
        try:
            with urllib.request.urlopen(f"{address}/api/health", timeout=2):
                os.environ["PREFECT_API_URL"] = f"{address}/api"
        except OSError:
            # Left over from a `make ui` that was killed.
            pass
    return os.environ.get("PREFECT_API_URL")


def main() -> None:
    """Run the flow once, or serve it as a deployment."""
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="stages; all by default")
    parser.add_argument("--force", action="store_true", help="run also what is up to date")
    parser.add_argument("--serve", action="store_true", help="wait for runs from the Prefect UI or a schedule")
    parser.add_argument("--every", type=float, metavar="HOURS", help="with --serve: schedule a run every so many hours")
    arguments = parser.parse_args()
    server = find_server()
    if arguments.serve and server is None:
        print("PREFECT_API_URL: got nothing, wanted the address of a Prefect server (make ui starts one)", file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("PREFECT_HOME", str(pathlib.Path("work/prefect").resolve()))
    pathlib.Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    from flows import repro

    print(f"Prefect: {server or 'a server for this run'}")
    if arguments.serve:
        from datetime import timedelta

        repro.pipeline.serve(name="pipeline", interval=timedelta(hours=arguments.every) if arguments.every else None, global_limit=1)
        return
    try:
        states = repro.pipeline(targets=arguments.targets or None, force=arguments.force)
    except (repro.StageFailed, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(getattr(error, "code", None) or 2)
    for name, state in states.items():
        print(f"{name:24} {state}")


if __name__ == "__main__":
    main()
