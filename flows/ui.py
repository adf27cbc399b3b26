"""Prefect and MLflow on loopback, on free ports, telemetry off; both end with ctrl-C. `make ui` calls this.

The addresses stand in work/ui.json while it runs, so `python -m flows.pipeline` finds the server. It keeps nothing alive in the
background and opens nothing to the network.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

STATE = pathlib.Path("work/ui.json")


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(name: str, command: list[str], environment: dict[str, str], logs: pathlib.Path) -> subprocess.Popen:
    with (logs / f"{name}.log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def wait_until_up(name: str, child: subprocess.Popen, url: str, seconds: float = 180.0) -> None:
    """Return when URL answers. Raises RuntimeError when the child ends first or time is up."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if child.poll() is not None:
            raise RuntimeError(f"{name}: got exit code {child.returncode} before it answered, wanted a server (work/ui/{name}.log)")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"{name}: got no answer from {url} in {seconds:.0f} s, wanted one (work/ui/{name}.log)")


def stop(children: list[subprocess.Popen]) -> None:
    """End the groups: politely, then for certain."""
    for number, grace in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        for child in children:
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                continue
        until = time.monotonic() + grace
        while time.monotonic() < until and any(child.poll() is None for child in children):
            time.sleep(0.1)


def main() -> None:
    """Start both, say where, wait."""
    parser = argparse.ArgumentParser(prog="python -m flows.ui", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    logs = pathlib.Path("work/ui")
    logs.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_HOME": os.environ.get("PREFECT_HOME") or str(pathlib.Path("work/prefect").resolve()),
    }
    pathlib.Path(environment["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    store = subprocess.run([sys.executable, "-m", "stages.track", "--where"], capture_output=True, text=True, check=True).stdout.strip()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    children, addresses = [], {}
    try:
        port = free_port()
        addresses["prefect"] = f"http://127.0.0.1:{port}"
        environment["PREFECT_API_URL"] = f"{addresses['prefect']}/api"
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        children.append(start("prefect", command, environment, logs))
        if store.startswith("sqlite:///"):
            pathlib.Path(store.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
            port = free_port()
            addresses["mlflow"] = f"http://127.0.0.1:{port}"
            command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
            children.append(start("mlflow", command, environment, logs))
        else:
            addresses["mlflow"] = store
        print("starting ...", flush=True)
        for name, child, path in zip(addresses, children, ("/api/health", "/health"), strict=False):
            wait_until_up(name, child, addresses[name] + path)
        STATE.write_text(json.dumps(addresses))
        print(f"Prefect  {addresses['prefect']}\nMLflow   {addresses['mlflow']}\nctrl-C ends both", flush=True)
        while all(child.poll() is None for child in children):
            time.sleep(0.5)
        print("one of the servers ended; see work/ui/*.log", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    finally:
        STATE.unlink(missing_ok=True)
        stop(children)


if __name__ == "__main__":
    main()
