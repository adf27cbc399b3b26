"""The processes of a slot.

    pool -> zygote (exec'ed; torch loaded; knows no task, no seed) -> judge process (trusted, long-lived)
                                                                  \\-> keeper (trusted) -> untrusted child

The zygote only forks. Tasks, candidates and secrets travel over sockets that it passes on and never reads. A keeper shuts
its child in, drains what it prints, kills it when told or when the judge is gone, and reports how it ended.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback

from sandbox import confine
from sandbox.confine import Confinement

LOG_BYTES = 16384
SERVERS = {"judge": "sandbox.bench", "builder": "sandbox.builders"}
"""Trusted processes that a zygote forks on order: `serve(client)` of a module."""


def send_message(sock: socket.socket, message: dict, fds: tuple[int, ...] = ()) -> None:
    """Length, then pickle; descriptors ride on the length. Only ever read by trusted code, or from trusted code."""
    data = pickle.dumps(message)
    sock.sendmsg([struct.pack("Q", len(data))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
    sock.sendall(data)


def receive_message(sock: socket.socket) -> tuple[dict, list[int]]:
    """Raises EOFError when the other side has gone."""
    head, ancillary, _, _ = sock.recvmsg(8, socket.CMSG_SPACE(64))
    fds: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.extend(array.array("i", data[: len(data) // 4 * 4]))
    if len(head) < 8:
        raise EOFError("closed")
    size, parts = struct.unpack("Q", head)[0], []
    while size:
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("closed")
        parts.append(part)
        size -= len(part)
    return pickle.loads(b"".join(parts)), fds


def die_with_parent() -> None:
    confine.libc.prctl(1, signal.SIGKILL, 0, 0, 0)


def close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(int(name))


class Child:
    """The judge's handle on one confined child."""

    def __init__(self, control: socket.socket, channel: socket.socket, pid: int, level: str):
        self.control, self.channel, self.pid, self.level = control, channel, pid, level
        self.report: dict | None = None
        self.collected: int | None = None

    def wait(self, timeout: float | None) -> dict | None:
        """The keeper's report {"status": wait status, "log": text}, or None on time-out."""
        if self.report is None:
            self.control.settimeout(timeout)
            try:
                self.report, fds = receive_message(self.control)
            except TimeoutError:
                return None
            except (EOFError, OSError):
                self.report, fds = {"status": signal.SIGKILL, "log": "", "lost": True}, []
            self.collected = fds[0] if fds else None
        return self.report

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # a keeper that has reported is gone
            self.control.sendall(b"k")

    def close(self) -> dict | None:
        """Kill, take the report, let go. Safe to call twice."""
        self.kill()
        report = self.wait(10.0)
        self.channel.close()
        self.control.close()
        return report


_zygote: socket.socket | None = None


def use_zygote(sock: socket.socket) -> None:
    """Which zygote `spawn` asks; set once in a judge process."""
    global _zygote
    _zygote = sock


def spawn(
    role: str, payload: dict, *, fds: tuple[int, ...] = (), confinement: Confinement | None, zygote: socket.socket | None = None
) -> Child:
    """Run `module:function(channel, payload, fds)` in a fresh confined child forked from the zygote.

    Without a confinement the child is trusted: a process of its own and nothing else. `payload` is pickled by us for the child; nothing pickled ever comes back. Raises SandboxError when no child comes up.
    """
    from data.records import SandboxError

    control, keeper_end = socket.socketpair()
    channel, child_end = socket.socketpair()
    try:
        send_message(zygote or _zygote, {"fork": "keeper"}, (keeper_end.fileno(),))
        message = {"role": role, "payload": payload, "confinement": confinement}
        send_message(control, message, (child_end.fileno(), *fds))
        keeper_end.close()
        child_end.close()
        control.settimeout(20.0)
        started, _ = receive_message(control)
    except (OSError, EOFError) as error:
        raise SandboxError(f"no child came up: {error}") from error
    if "pid" not in started:
        raise SandboxError(f"no child came up: {started.get('error')}")
    return Child(control, channel, started["pid"], started["level"])


def keeper(control: socket.socket) -> None:
    """Body of a keeper process: never returns."""
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    message, fds = receive_message(control)
    close_all_but({control.fileno(), *fds})
    confinement: Confinement | None = message["confinement"]
    uid = confine.FIRST_UID + confinement.index if confinement else os.geteuid()
    mapped = confine.mapped_bytes()
    try:
        confine.libc.prctl(36, 1, 0, 0, 0)  # orphans of the child come to us, also without a PID namespace
        level = confine.enter_namespaces(uid) if confinement else "trusted"
        if confinement and confinement.keep_root and level in ("root", "userns"):
            level = "kept_root"
        scratch = None
        if level == "kept_root":
            confine.cover_secrets(confinement, uid)
            os.chdir(confine.WORK)
        elif level in ("root", "userns"):
            confine.new_root(confinement, uid, level)
            os.chdir(confine.WORK)
        else:
            scratch = tempfile.mkdtemp(prefix="cuda-agent-w-")
            os.chown(scratch, *((uid, uid) if level == "uid" else (-1, -1)))
            os.chdir(scratch)
        log_read, log_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            control.close()
            _child(message, fds, level, uid, log_write, mapped)
        for fd in (log_write, *fds):
            os.close(fd)
        send_message(control, {"pid": pid, "level": level})
    except Exception as error:  # whatever keeps a child from coming up is ours, and is told to the judge
        send_message(control, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    _watch(control, pid, log_read, confinement, scratch)


def _watch(control: socket.socket, pid: int, log_read: int, confinement: Confinement | None, scratch: str | None) -> None:
    pidfd, log, killed = os.pidfd_open(pid), b"", False
    poller = select.poll()
    for fd in (pidfd, log_read, control.fileno()):
        poller.register(fd, select.POLLIN | select.POLLHUP)
    open_log, ended = True, False
    while not ended:
        for fd, _ in poller.poll():
            if fd == log_read:
                part = os.read(log_read, 65536)
                log = (log + part)[-LOG_BYTES:]
                if not part:
                    poller.unregister(log_read)
                    open_log = False
            elif fd == control.fileno():
                with contextlib.suppress(OSError):
                    control.recv(64)
                if not killed:
                    os.kill(pid, signal.SIGKILL)
                killed = True
                poller.unregister(control.fileno())
            else:
                ended = True
    _, status = os.waitpid(pid, 0)
    if scratch:
        _reap_orphans()  # a PID namespace ends with its first process, and here /proc can be read
    while open_log and select.select([log_read], [], [], 0)[0]:
        part = os.read(log_read, 65536)
        log, open_log = (log + part)[-LOG_BYTES:], bool(part)
    collected: tuple[int, ...] = ()
    if confinement and confinement.collect and status == 0:
        with contextlib.suppress(OSError):  # no such file is reported by its absence
            collected = (os.open(confinement.collect, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK),)
    with contextlib.suppress(OSError):  # a judge that has gone needs no report
        send_message(control, {"status": status, "log": log.decode("utf-8", "replace"), "killed": killed}, collected)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


def _reap_orphans() -> None:
    """Without a PID namespace the child's children have come to us: kill until none is left."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as listing:
            orphans = [int(p) for p in listing.read().split()]
        if not orphans:
            return
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)


def _child(message: dict, fds: list[int], level: str, uid: int, log_write: int, mapped: int) -> None:
    """The last trusted lines before untrusted code: never returns."""
    try:
        confinement: Confinement | None = message["confinement"]
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for target, source in ((0, null), (1, log_write), (2, log_write)):
            os.dup2(source, target)
        if level in ("root", "userns", "kept_root"):
            confine.mount("proc", "/proc", "proc", confine.MS_NOSUID | confine.MS_NODEV)
        close_all_but(set(fds))
        home = os.getcwd()
        if confinement:
            os.environ.clear()
            os.environ.update(
                PATH=f"{sys.prefix}/bin:/usr/bin:/bin", HOME=home, TMPDIR=home, LANG="C.UTF-8", OMP_NUM_THREADS="1", MAX_JOBS="1"
            )
            confine.set_limits(confinement, mapped, level)
            confine.drop_privileges(uid, "root" if level == "kept_root" else level)
            if confinement.seccomp:
                confine.install_seccomp(confinement.may_exec)
        else:
            die_with_parent()
        module, function = message["role"].split(":")
        run = getattr(importlib.import_module(module), function)
        channel, payload = socket.socket(fileno=fds[0]), message["payload"]
        del message
        run(channel, payload, fds[1:])
    except SystemExit as leave:
        os._exit(leave.code if isinstance(leave.code, int) else 1)
    except BaseException:  # the traceback is the child's log; nothing may unwind into the zygote's frames
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def start_zygote(slot: str, index: int, cpus: set[int] | None, imports: tuple[str, ...] = ()) -> tuple[int, socket.socket]:
    """exec a zygote with a minimal environment. Returns its pid and the socket on which it takes orders."""
    import subprocess

    ours, theirs = socket.socketpair()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {
        key: os.environ[key]
        for key in ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")
        if key in os.environ
    }
    environment |= {
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "PYTHONPATH": root,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment |= {"SANDBOX_SLOT": slot, "SANDBOX_INDEX": str(index), "SANDBOX_CPUS": ",".join(map(str, sorted(cpus or ())))}
    command = [sys.executable, "-m", "sandbox.slot", str(theirs.fileno()), ",".join(imports)]
    process = subprocess.Popen(
        command, env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, cwd="/", start_new_session=True
    )
    theirs.close()
    return process, ours


def main() -> None:
    # No parent-death signal here: it would follow the thread of the pool that started us. The orders' end is ours too.
    orders = socket.socket(fileno=int(sys.argv[1]))
    cpus = {int(c) for c in os.environ["SANDBOX_CPUS"].split(",") if c}
    if cpus:
        os.sched_setaffinity(0, cpus)
    import gc

    import torch

    import sandbox.worker  # children find it loaded: the repository is not part of their file system

    torch.set_num_threads(1)
    for name in filter(None, sys.argv[2].split(",")):
        importlib.import_module(name)
    sandbox.worker.preload()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sockets, listener = {orders.fileno(): orders}, select.poll()
    listener.register(orders, select.POLLIN | select.POLLHUP)
    send_message(orders, {"ready": True})
    while True:
        for number, _ in listener.poll():
            try:
                order, fds = receive_message(sockets[number])
            except (EOFError, OSError):
                if number == orders.fileno():
                    os._exit(0)
                listener.unregister(number)
                sockets.pop(number).close()
                continue
            if order["fork"] in SERVERS:
                mine, theirs = socket.socketpair()
                sockets[mine.fileno()] = mine
                listener.register(mine, select.POLLIN | select.POLLHUP)
                _fork(
                    lambda client, theirs=theirs, module=SERVERS[order["fork"]]: _serve(module, client, theirs), fds, keep={theirs.fileno()}
                )
                theirs.close()
            else:
                _fork(keeper, fds)


def _fork(body, fds: list[int], keep: set[int] = frozenset()) -> None:
    if os.fork() == 0:
        try:
            close_all_but({*fds, *keep})
            body(socket.socket(fileno=fds[0]))
        except BaseException:  # printed, and the other side sees the socket close
            traceback.print_exc()
        os._exit(1)
    for fd in fds:
        os.close(fd)


def _serve(module: str, client: socket.socket, zygote: socket.socket) -> None:
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    use_zygote(zygote)
    importlib.import_module(module).serve(client)


if __name__ == "__main__":
    # `-m` runs this file as __main__; children and judge must share the module `sandbox.slot`.
    importlib.import_module("sandbox.slot").main()
