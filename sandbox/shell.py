"""A shell in the sandbox: what the agent types runs under its own uid and namespaces, without a network, and sees its workspace alone.

    Shells (one zygote) -> Shell (one episode; one confined server, first process of its PID namespace) -> one process group a command

The server is as little trusted as what it starts: its answers are text, and no verdict depends on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import threading
import time

from data.records import SandboxError
from sandbox import confine, slot
from sandbox.confine import Confinement

INSIDE = "/workspace"
"""Where commands find the workspace."""
EDGE_BYTES = 4000
"""Output kept of a command: this much of its beginning and this much of its end."""
MAX_JOBS = 16
MEMORY_BYTES = 4 << 30
PROCESSES = 64
CPU_S = 600
FILE_BYTES = 32 << 20
ANSWER_BYTES = 1 << 20
FIRST_INDEX = 512
"""Added to a lease's index: uids behind those of the builders."""


class Shells:
    """The zygote behind the shells of many episodes. Blocking; threads may share it. Raises SandboxError when it does not come up."""

    def __init__(self):
        self.lock = threading.Lock()
        self.zygote, self.orders = slot.start_zygote("shell", 0, None, ("sandbox.shell",))
        self.orders.settimeout(120)
        try:
            slot.receive_message(self.orders)
        except (EOFError, OSError) as error:
            self.close()
            raise SandboxError(f"the shells do not come up: {error}") from error

    def open(self, folder: str | os.PathLike[str]) -> Shell:
        """A shell that sees `folder` as /workspace. Raises SandboxError: every uid is taken, or this machine gives no namespaces."""
        from sandbox.pool import Lease

        lease = Lease.take("shell", [f"shell{n}" for n in range(512)], wait=False)
        if lease is None:
            raise SandboxError("every uid for shells is taken on this host")
        confinement = Confinement(
            index=FIRST_INDEX + lease.index, memory_bytes=MEMORY_BYTES, processes=PROCESSES, cpu_s=CPU_S, file_bytes=FILE_BYTES,
            may_exec=True, writable=((os.fspath(folder), INSIDE),),
        )  # fmt: skip
        try:
            with self.lock:
                child = slot.spawn("sandbox.shell:serve", {}, confinement=confinement, zygote=self.orders)
        except SandboxError:
            lease.release()
            raise
        shell = Shell(child, lease, confine.FIRST_UID + confinement.index)
        if child.level not in ("root", "userns"):  # without a PID namespace, stopping "all" would stop the user's processes
            shell.close()
            raise SandboxError(f"bash wants a PID and a mount namespace of its own, got isolation {child.level!r}")
        return shell

    def close(self) -> None:
        """End the zygote. Shells that are open go on until they are closed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.zygote.pid, signal.SIGKILL)
        self.zygote.wait()
        self.orders.close()


class Shell:
    """One episode's shell. Blocking; one call at a time. Every method raises EOFError once its server has gone."""

    def __init__(self, child: slot.Child, lease, uid: int):
        self.child, self.lease, self.lock = child, lease, threading.Lock()
        self.owner = uid if child.level == "root" else None
        """uid to which files of the workspace are given; None where it is our own."""

    def run(self, command: str, seconds: float) -> dict:
        """{"status": exit status, minus a signal's number, or None after `seconds`; "text": output; "left_out": bytes not in it}.
        What the command started in its process group ends with it."""
        return self._ask({"run": command, "seconds": seconds}, seconds)

    def start(self, command: str) -> dict:
        """{"job": number}, or {"error": line}: the command goes on until `kill` or the end of the episode."""
        return self._ask({"start": command})

    def output(self, job: int) -> dict:
        """As `run`, of what came since it was last asked for; status None: it runs. {"error": line} for an unknown job."""
        return self._ask({"output": job})

    def kill(self, job: int) -> dict:
        """As `output`, after the job's process group was ended."""
        return self._ask({"kill": job})

    def freeze(self) -> None:
        """Stop every process of the workspace until `thaw`."""
        self._ask({"freeze": True})

    def thaw(self) -> None:
        self._ask({"thaw": True})

    def close(self) -> None:
        """End every process of the workspace. Safe to call twice."""
        if self.lease is not None:
            self.child.close()
            self.lease.release()
            self.lease = None

    def _ask(self, request: dict, seconds: float = 0.0) -> dict:
        with self.lock:
            try:
                self.child.channel.settimeout(seconds + 30)
                _send(self.child.channel, request)
                answer = _receive(self.child.channel)
            except (OSError, ValueError) as error:
                raise EOFError(f"the shell's server is gone: {error}") from error
        # Processes of its own uid may have got at the server: an odd answer ends it
        kinds = {"status": int | None, "text": str, "left_out": int, "job": int, "error": str}
        odd = [key for key, value in answer.items() if key not in kinds or not isinstance(value, kinds[key])]
        needed = {"start": {"job"}, "freeze": set(), "thaw": set()}.get(next(iter(request)), {"status", "text"})
        if odd or not ("error" in answer or needed <= set(answer)):
            raise EOFError(f"the shell's server says {sorted(answer)[:5]}")
        return answer


def _send(channel: socket.socket, message: dict) -> None:
    data = json.dumps(message).encode()
    channel.sendall(struct.pack("I", len(data)) + data)


def _receive(channel: socket.socket) -> dict:
    """Raises EOFError, OSError, ValueError."""
    size = struct.unpack("I", _exactly(channel, 4))[0]
    if size > ANSWER_BYTES:
        raise ValueError(f"got {size} bytes, wanted at most {ANSWER_BYTES}")
    message = json.loads(_exactly(channel, size))
    if not isinstance(message, dict):
        raise ValueError("got no object")
    return message


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise EOFError("closed")
        data += part
    return data


# --------------------------------------------------------------------------------- inside the sandbox


class _Job:
    """A command, its process group and the two ends of what it wrote."""

    def __init__(self, command: str):
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=INSIDE,
        )
        self.pipe = self.process.stdout.fileno()
        os.set_blocking(self.pipe, False)
        self.open, self.head, self.tail, self.left_out = True, b"", b"", 0

    def drain(self) -> None:
        """Take what has come; at most 16 reads, so that an endless writer cannot hold the server."""
        for _ in range(16):
            try:
                part = os.read(self.pipe, 65536)
            except BlockingIOError:
                return
            if not part:
                self.open = False
                return
            room = EDGE_BYTES - len(self.head)
            self.head += part[:room]
            self.tail += part[room:] if room > 0 else part
            self.left_out += max(0, len(self.tail) - EDGE_BYTES)
            self.tail = self.tail[-EDGE_BYTES:]

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def take(self, status: int | None) -> dict:
        self.drain()
        gap = f"\n[{self.left_out} bytes left out]\n".encode() if self.left_out else b""
        answer = {"status": status, "text": (self.head + gap + self.tail).decode("utf-8", "replace"), "left_out": self.left_out}
        self.head, self.tail, self.left_out = b"", b"", 0
        return answer


def serve(channel: socket.socket, payload: dict, fds: list[int]) -> None:
    """Role of a shell's server: answers requests until the channel closes, and every process of its namespace ends with it."""
    os.umask(0o022)
    channel.settimeout(None)
    jobs: dict[int, _Job] = {}
    current, deadline = None, 0.0
    count = 0
    while True:
        live = [job for job in [*jobs.values(), current] if job and job.open]
        wait = 0.02 if current else (0.5 if live else None)
        readable = select.select([*([] if current else [channel]), *(job.pipe for job in live)], [], [], wait)[0]
        for job in live:
            if job.pipe in readable:
                job.drain()
        _reap({job.process.pid: job for job in [*jobs.values(), current] if job})
        if current:
            status, late = current.process.poll(), time.monotonic() > deadline
            if status is not None or late:
                current.end()
                _send(channel, current.take(status))
                current.process.stdout.close()
                current = None
        elif channel in readable:
            request = _receive(channel)
            if "run" in request:
                current, deadline = _Job(request["run"]), time.monotonic() + request["seconds"]
            elif "start" in request:
                if sum(job.process.poll() is None for job in jobs.values()) >= MAX_JOBS:
                    _send(channel, {"error": f"got {MAX_JOBS} jobs under way, wanted fewer: kill one"})
                    continue
                count += 1
                jobs[count] = _Job(request["start"])
                _send(channel, {"job": count})
            elif "freeze" in request:
                _signal_all(signal.SIGSTOP)
                _wait_stopped()
                _send(channel, {})
            elif "thaw" in request:
                _signal_all(signal.SIGCONT)
                _send(channel, {})
            else:
                number = request.get("output", request.get("kill"))
                if number not in jobs:
                    _send(channel, {"error": f"no job {number}; jobs: {', '.join(map(str, jobs)) or 'none'}"})
                    continue
                if "kill" in request:
                    jobs[number].end()
                    jobs[number].process.wait()
                _send(channel, jobs[number].take(jobs[number].process.poll()))


def _signal_all(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # there is no other process
        os.kill(-1, number)


def _wait_stopped() -> None:
    """A running process stops at its next interrupt: wait for all, at most a second."""
    end = time.monotonic() + 1
    while time.monotonic() < end:
        states = []
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has gone
                states.append((path.parent.name, path.read_text().rpartition(")")[2].split()[0]))
        if all(state in "TtZX" for pid, state in states if int(pid) != os.getpid()):
            return
        time.sleep(0.002)


def _reap(jobs: dict[int, _Job]) -> None:
    """Orphans come to the first process of the namespace; they would count as processes until waited for."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        if found.si_pid in jobs:
            jobs[found.si_pid].process.poll()
        else:
            os.waitpid(found.si_pid, 0)
