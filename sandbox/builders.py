"""Builds beside the slots: candidates are compiled on whatever core is free, while no slot and no device is held for them.

What a build finds lies in the judge's cache by content (sandbox/build.py), failures too, so that a slot then needs milliseconds for it.
Verdicts come from slots alone: a build that ends here in any other way (time, memory, a lost process) is made again there.
Not here: device code. On the cuda backend a plan is compiled in its own disposable process, and nvcc is not asked beside the slots yet.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import socket
import threading

from data.records import Candidate, SandboxError, Status
from sandbox import build, slot
from sandbox.backends import Failed, Limits


class Builders:
    """At most `many` builds at a time, each under a uid of its own (a lease of the host), at the lowest priority. Raises SandboxError."""

    def __init__(self, many: int):
        from sandbox.pool import Lease

        names = [f"build{n}" for n in range(4 * (os.cpu_count() or 1))]
        leases = iter(lambda: Lease.take("build", names, wait=False), None)
        self.leases = [lease for _, lease in zip(range(many), leases, strict=False)]
        if not self.leases:
            raise SandboxError("every uid for builds is taken on this host")
        self.free, self.lock = list(self.leases), threading.Lock()
        # Threads of our own: those of the event loop are for the slots
        self.threads = concurrent.futures.ThreadPoolExecutor(len(self.leases), "builder")
        self.zygote, self.orders = slot.start_zygote("build", 0, None)
        self.orders.settimeout(120)
        try:
            slot.receive_message(self.orders)
        except (EOFError, OSError) as error:
            self.close()
            raise SandboxError(f"the builders do not come up: {error}") from error
        # Timed calls go first on every core; its children inherit this
        os.sched_setscheduler(self.zygote.pid, os.SCHED_IDLE, os.sched_param(0))

    async def fails(self, candidate: Candidate, limits: Limits) -> bool:
        """Build a C++ candidate into the cache. True where its own text keeps it from being built; False says nothing."""
        if not any(name.startswith("kernels/") for name in candidate.files):
            return False
        return await asyncio.get_running_loop().run_in_executor(self.threads, self._fails, candidate, limits)

    def _fails(self, candidate: Candidate, limits: Limits) -> bool:
        with self.lock:
            lease = self.free.pop()
        try:
            return self._ask({"candidate": candidate.to_dict(), "limits": limits.to_dict(), "index": lease.index}, limits)
        except (OSError, EOFError):
            return False  # whatever it was, the slot will find it
        finally:
            with self.lock:
                self.free.append(lease)

    def _ask(self, request: dict, limits: Limits) -> bool:
        ours, theirs = socket.socketpair()
        with contextlib.closing(ours):
            with contextlib.closing(theirs), self.lock:
                slot.send_message(self.orders, {"fork": "builder"}, (theirs.fileno(),))
            ours.settimeout(limits.build_s + 30)
            slot.send_message(ours, request)
            return slot.receive_message(ours)[0]["fails"]

    def close(self) -> None:
        """End every build; `fails` then says False."""
        self.threads.shutdown(wait=False)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.zygote.pid, signal.SIGKILL)
        self.zygote.wait()
        self.orders.close()
        for lease in self.leases:
            lease.release()


def serve(client: socket.socket) -> None:
    """Body of a builder process: one build."""
    from sandbox.cpp import cpu_model

    request, _ = slot.receive_message(client)
    candidate, limits, fails = Candidate.from_dict(request["candidate"]), Limits.from_dict(request["limits"]), False
    try:
        build.build(candidate, index=request["index"], seconds=limits.build_s, memory_bytes=limits.memory_bytes, cpu=cpu_model())
    except Failed as failed:
        fails = failed.status is not Status.COMPILE_TIMEOUT
    except (SandboxError, ValueError) as error:
        print(f"sandbox: a build beside the slots failed: {error}", flush=True)
    slot.send_message(client, {"fails": fails})
