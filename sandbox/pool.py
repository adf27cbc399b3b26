"""A pool of slots: leases on cores or GPUs, warm processes, verdicts for many candidates at once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable

from data.records import Candidate, SandboxError, Status, Task, Verdict
from sandbox import backends, build, slot
from sandbox.backends import PREPARED, ROOM, Limits, Measurement
from sandbox.builders import Builders

LONGEST_S = 900.0
"""A judge process that does not answer for so long beyond its limits is ours to restart."""

UNREADY = max(ROOM, *PREPARED.values())
"""Distance of a task that a slot would have to make ready."""
CROWD = 5
"""Questions that wait for a slot which has their task ready, before another slot makes it ready too: that costs about as much as so many verdicts."""
REMEMBERED = 4096
"""Verdicts that a pool keeps for who does not ask afresh: a service lives for weeks."""
FEEDBACK_CALLS = 24
"""Checked calls of a verdict that need not be fresh: what the agent sees inside an episode is never a reward."""

_held: set[tuple[str, str]] = set()
"""Slots of this very process: waiting for one of them would wait forever."""


class Lease:
    """An exclusive hold on one slot name of this host (flock: it ends with the process, however that ends)."""

    def __init__(self, backend: str, name: str, index: int, fd: int):
        self.backend, self.name, self.index, self.fd = backend, name, index, fd
        _held.add((backend, name))

    @classmethod
    def take(cls, backend: str, names: list[str], *, wait: bool) -> Lease | None:
        """First free slot among `names`; with `wait`, block on the one that this process hashes to."""
        folder, order = build.cache_folder("slots"), list(enumerate(names))
        base = {"cpp": 0, "cuda": 512}.get(backend, 1024)
        for index, name in order:
            fd = os.open(folder / f"{backend}-{name}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(backend, name, base + index, fd)
            except BlockingIOError:
                os.close(fd)
        if not wait:
            return None
        if all((backend, name) in _held for name in names):
            raise SandboxError(f"this process itself holds every slot of backend {backend}")
        index, name = next(o for o in order[os.getpid() % len(order) :] + order if (backend, o[1]) not in _held)
        print(f"sandbox: all slots are taken, waiting for {name}", file=sys.stderr, flush=True)
        fd = os.open(folder / f"{backend}-{name}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return cls(backend, name, base + index, fd)

    def release(self) -> None:
        _held.discard((self.backend, self.name))
        os.close(self.fd)


class Slot:
    """One leased slot with its zygote and judge process. Blocking; used by one thread at a time."""

    def __init__(self, backend: str, lease: Lease, *, pinned: bool = True):
        self.backend, self.lease, self.pinned = backend, lease, pinned
        self.zygote: subprocess.Popen | None = None
        self.orders: socket.socket | None = None
        self.judge: socket.socket | None = None
        self.recent: list[str] = []
        self.closed, self.up = False, False

    def distance(self, task: str) -> int:
        """0 for the task of the last request, 1 for the one before, ...; UNREADY for tasks that the judge process has dropped."""
        return self.recent.index(task) if task in self.recent else UNREADY

    def expect(self, task: str) -> None:
        """The next request is about this task."""
        self.recent = [task, *(t for t in self.recent if t != task)][: PREPARED.get(self.backend, ROOM)]

    def launch(self) -> None:
        """Start the zygote and do not wait for it."""
        if self.zygote is not None and self.zygote.poll() is None:
            return
        self.stop()
        cpus = {int(self.lease.name[3:])} if self.pinned and self.lease.name.startswith("cpu") else None
        imports = getattr(__import__(backends.FILES[self.backend], fromlist=["x"]), "zygote_imports", ())
        self.zygote, self.orders = slot.start_zygote(self.lease.name, self.lease.index, cpus, tuple(imports))
        self.orders.settimeout(120)
        self.up = False

    def start(self) -> None:
        """Zygote up and judge process forked. Raises SandboxError."""
        if self.closed:
            raise SandboxError(f"slot {self.lease.name}: its pool has been left")
        self.stop_judge()
        self.launch()
        if self.closed:  # `close` came before there was a zygote to end
            self.close()
        if not self.up:
            try:
                slot.receive_message(self.orders)
            except (EOFError, OSError) as error:
                raise SandboxError(f"slot {self.lease.name} does not come up: {error}") from error
            self.up = True
        ours, theirs = socket.socketpair()
        try:
            slot.send_message(self.orders, {"fork": "judge"}, (theirs.fileno(),))
        except OSError as error:
            ours.close()
            raise SandboxError(f"slot {self.lease.name}: the zygote is gone ({error})") from error
        finally:
            theirs.close()
        self.judge = ours

    def ask(self, request: dict, limits: Limits) -> dict:
        """One request, once. Raises SandboxError and, for a fault of the user's machine, ValueError.

        A judge process that dies while it prepares the task was taken down by the reference: {"invalid": reason}.
        """
        if self.judge is None:
            self.start()
        phase = "start"
        try:
            self.judge.settimeout(LONGEST_S + 3 * limits.total_s + limits.build_s)
            slot.send_message(self.judge, request)
            while True:
                message, _ = slot.receive_message(self.judge)
                if "phase" not in message:
                    break
                phase = message["phase"]
        except (EOFError, OSError) as error:
            self.stop_judge()
            if phase == "prepare" and not self.closed:
                return {"invalid": f"the reference took its process down ({type(error).__name__})"}
            raise SandboxError(f"slot {self.lease.name}: the judge process is gone ({error})") from error
        if "user" in message:
            raise ValueError(message["user"])
        if "error" in message:
            self.stop_judge()
            raise SandboxError(message["error"])
        return message

    def stop_judge(self) -> None:
        if self.judge is not None:
            self.judge.close()
            self.judge = None

    def close(self) -> None:
        """From another thread than the one that asks: no further question, and the one in flight ends with SandboxError.

        Ends the processes only; who asks may still hold the sockets, and `stop` clears up when it is done.
        """
        self.closed = True
        if (zygote := self.zygote) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(zygote.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End every process of the slot; the kernel takes children with their parents."""
        self.stop_judge()
        if self.orders is not None:
            self.orders.close()
            self.orders = None
        if self.zygote is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.zygote.pid, signal.SIGKILL)
            self.zygote.wait()
            self.zygote = None

    def call(self, call: str, task: Task, limits: Limits, **fields) -> Verdict | Measurement:
        """A request with its one retry. Raises SandboxError."""
        request = {"call": call, "backend": self.backend, "task": task.to_dict(), "limits": limits.to_dict(), **fields}
        self.expect(task.id)
        try:
            message = self.ask(request, limits)
        except SandboxError:
            self.recent = [task.id]  # the process that had the others is gone
            message = self.ask(request, limits)
        kind = Verdict if call == "judge" else Measurement
        if "invalid" not in message:
            return kind.from_dict(message["answer"])
        if call == "measure":
            return Measurement(invalid=message["invalid"])
        candidate, precision = Candidate.from_dict(fields["candidate"]), fields["precision"] or task.precision
        return Verdict(
            status=Status.TASK_INVALID, reason=message["invalid"], task=task.id, candidate=candidate.id, backend=self.backend, policy=fields["policy"],
            precision=precision, track=fields["track"],
        )  # fmt: skip


class Pool:
    """`async with Pool(backend="cpp", policy="libraries_allowed") as pool: verdict = await pool.judge(task, candidate, fresh=True)`.

    `slots`: how many to take (default: all of the machine that are free, at least one). `builders`: C++ candidates that are compiled at
    a time beside the slots, before they have a slot's turn; those that do not build go first, since a slot needs no time for them.
    """

    def __init__(
        self,
        *,
        backend: str = "cpp",
        policy: str = "libraries_allowed",
        precision: str | None = None,
        track: str = "default",
        limits: Limits | None = None,
        slots: int | None = None,
        builders: int = 0,
    ):
        if builders and backend != "cpp":
            raise ValueError(f"builders: got {builders} on {backend}, wanted 0: only C++ is compiled beside the slots")
        self.backend, self.policy, self.precision, self.track, self.limits, self.wanted = (
            backend,
            policy,
            precision,
            track,
            limits or Limits(),
            slots,
        )
        self.slots: list[Slot] = []
        self.idle: list[Slot] = []
        self.waiting: list[tuple[str, bool, asyncio.Future]] = []
        self.builders, self.wanted_builders = None, builders
        self.jobs: set[asyncio.Future] = set()
        self.left = False
        self.counts = {"judged": 0, "cached": 0, "shared": 0, "sandbox_errors": 0}
        self.watch = None
        """Set by sandbox.canary.Watch: told of every judgement, so that canaries ride along."""

    def launch(self) -> typing.Self:
        """Take the slots that are free and start their processes, without waiting for any: they come up while the caller does
        something else before it enters the pool, or gives it up (`drop`). Raises SandboxError."""
        names = backends.slots(self.backend)
        if not names:
            raise SandboxError(f"no slot for backend {self.backend} on this machine")
        most = max(1, len(names) // self.limits.threads) if self.backend == "cpp" else len(names)
        while len(self.slots) < min(self.wanted or most, most) and (lease := Lease.take(self.backend, names, wait=False)):
            self._add(lease)
        return self

    def _add(self, lease: Lease) -> None:
        self.slots.append(Slot(self.backend, lease, pinned=self.limits.threads == 1))
        self.slots[-1].launch()

    async def __aenter__(self) -> typing.Self:
        self.launch()
        if not self.slots:
            self._add(await asyncio.to_thread(Lease.take, self.backend, backends.slots(self.backend), wait=True))
        self.idle = list(self.slots)
        self.opened, self.busy_s = time.monotonic(), 0.0
        self.cache: dict[tuple, Verdict] = {}
        self.flying: dict[tuple, asyncio.Future] = {}
        try:
            if self.wanted_builders:
                self.builders = await asyncio.to_thread(Builders, self.wanted_builders)
            await asyncio.gather(*(asyncio.to_thread(s.start) for s in self.slots))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error) -> None:
        """End every slot. Questions in flight and those that wait end with SandboxError."""
        self.left = True
        for _, _, place in self.waiting:
            if not place.done():
                place.set_exception(SandboxError("the pool was left before this question's turn"))
        if self.builders is not None:
            await asyncio.to_thread(self.builders.close)
        for s in self.slots:
            s.close()
        # A thread with a question sees its judge process go; only then may its slot be cleared up under it
        await asyncio.gather(*self.jobs, return_exceptions=True)
        await asyncio.gather(*(asyncio.to_thread(s.stop) for s in self.slots))
        for s in self.slots:
            s.lease.release()
        self.slots = []

    def drop(self) -> None:
        """End the slots of a pool that was launched and not entered; after `async with` there is nothing left to end."""
        for s in self.slots:
            s.stop()
            s.lease.release()
        self.slots = []

    async def _on_slot(self, task: Task, work, *, quick: bool = False):
        """Run blocking `work(slot)` on a slot. `quick` work goes first, it needs no task; then who waits for a task that the slot has
        ready: making it ready anew costs seconds."""
        chosen = await self._take(task.id, quick)
        begin = time.monotonic()
        job = asyncio.ensure_future(asyncio.to_thread(work, chosen))
        self.jobs.add(job)
        job.add_done_callback(self.jobs.discard)
        try:
            return await _unabandoned(job)
        except SandboxError:
            self.counts["sandbox_errors"] += 1
            raise
        finally:
            self.busy_s += time.monotonic() - begin
            self._give(chosen)

    def usage(self) -> dict[str, float]:
        """Counts so far, slots, `seconds` since the pool is open and `busy_s`, the slots' seconds with a request (ended ones only)."""
        return self.counts | {"slots": len(self.slots), "seconds": time.monotonic() - self.opened, "busy_s": self.busy_s}

    async def _take(self, task: str, quick: bool) -> Slot:
        if self.left:
            raise SandboxError("the pool has been left")
        place = asyncio.get_running_loop().create_future()
        self.waiting.append((task, quick, place))
        self._hand_out()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give(place.result())
            raise

    def _give(self, free: Slot) -> None:
        self.idle.append(free)
        self._hand_out()

    def _hand_out(self) -> None:
        """Idle slots to who waits: quick work first, then what a slot has ready, then what none has. What another slot has ready is left
        to it, unless it has a crowd of such work before it."""
        self.waiting = [w for w in self.waiting if not w[2].done()]

        def cost(free: Slot, waiting: tuple) -> tuple | None:
            task, quick, _ = waiting
            owners = [s for s in self.slots if s is not free and s.distance(task) < UNREADY]
            if quick or free.distance(task) < UNREADY or not owners:
                return not quick, free.distance(task), False
            before = min(sum(owner.distance(w[0]) < UNREADY for w in self.waiting) for owner in owners)
            return (True, UNREADY, True) if before >= CROWD else None

        while pairs := [(price, free, w) for free in self.idle for w in self.waiting if (price := cost(free, w)) is not None]:
            _, free, chosen = min(pairs, key=lambda pair: pair[0])
            self.idle.remove(free)
            self.waiting.remove(chosen)
            if not chosen[1]:
                free.expect(chosen[0])
            chosen[2].set_result(free)

    async def judge(
        self,
        task: Task,
        candidate: Candidate,
        *,
        fresh: bool,
        policy: str | None = None,
        precision: str | None = None,
        track: str | None = None,
    ) -> Verdict:
        """Verdict on one candidate; without `fresh` it may come from the cache or from the same question in flight.

        policy, precision, track: of this judgement, default: the pool's. Raises SandboxError.
        """
        policy, precision, track = policy or self.policy, precision or self.precision, track or self.track
        key = (task.id, candidate.id, task.baselines is not None, policy, precision, track)
        if not fresh and key in self.cache:
            self.counts["cached"] += 1
            return self.cache[key]
        if not fresh and key in self.flying:
            self.counts["shared"] += 1
            return await asyncio.shield(self.flying[key])
        future = asyncio.get_running_loop().create_future() if not fresh else None
        if future is not None:
            self.flying[key] = future
        try:
            fields = {"candidate": candidate.to_dict(), "policy": policy, "precision": precision, "track": track}
            limits = self.limits if fresh else dataclasses.replace(self.limits, calls=min(self.limits.calls, FEEDBACK_CALLS))
            fails = self.builders is not None and await self.builders.fails(candidate, limits)
            verdict = await self._on_slot(task, lambda s: s.call("judge", task, limits, **fields), quick=fails)
            self.counts["judged"] += 1
            self.cache[key] = verdict
            while len(self.cache) > REMEMBERED:
                del self.cache[next(iter(self.cache))]
            if self.watch is not None:
                self.watch.judged()
            if future is not None:
                future.set_result(verdict)
            return verdict
        except BaseException as error:
            if future is not None:
                future.set_exception(error if isinstance(error, Exception) else SandboxError("the asker went away"))
                future.exception()
            raise
        finally:
            if future is not None:
                self.flying.pop(key, None)

    async def probe(self, task: Task, candidate: Candidate, *, policy: str) -> Verdict:
        """A fresh verdict for a canary: the same slots and limits as for everybody, remembered and counted nowhere. Raises SandboxError."""
        fields = {"candidate": candidate.to_dict(), "policy": policy, "precision": self.precision, "track": self.track}
        return await self._on_slot(task, lambda s: s.call("judge", task, self.limits, **fields))

    async def judge_group(
        self, task: Task, candidates: list[Candidate], *, fresh: bool, enough: Callable[[Verdict], bool] | None = None
    ) -> list[Verdict | None]:
        """Verdicts in the order of `candidates`; they share reference, oracle, questions and baselines on each slot.

        Once a verdict is `enough`, what has none yet is given up and stays None. Raises SandboxError.
        """
        asked = [asyncio.ensure_future(self.judge(task, c, fresh=fresh)) for c in candidates]
        try:
            for found in asyncio.as_completed(asked):
                if (verdict := await found) and enough is not None and enough(verdict):
                    break
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return [None if one.cancelled() else one.result() for one in asked]

    async def measure(self, task: Task, *, worth: tuple[float, float] | None = None) -> Measurement:
        """Baselines and controls. A task whose eager time lies outside `worth` (ms) may go without a compiled baseline."""
        fields = {"precision": self.precision, "track": self.track, "worth": worth}
        return await self._on_slot(task, lambda s: s.call("measure", task, self.limits, **fields))


async def _unabandoned(job: asyncio.Future):
    """A cancelled asker leaves the slot busy until its thread is done: the slot must not be handed on before."""
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await job
        raise


_local: dict[tuple[str, bool], Slot] = {}
_lock = threading.Lock()


def local_slot(backend: str, limits: Limits) -> Slot:
    """This process's own slot, started on first use and ended with it."""
    import atexit

    key = backend, limits.threads == 1
    with _lock:
        if key not in _local:
            names = backends.slots(backend)
            if not names:
                raise SandboxError(f"no slot for backend {backend} on this machine")
            _local[key] = Slot(backend, Lease.take(backend, names, wait=True), pinned=key[1])
            atexit.register(_local[key].stop)
        return _local[key]


def let_go() -> None:
    """End this process's own slots now rather than with the process."""
    with _lock:
        for slot_ in _local.values():
            slot_.stop()
            slot_.lease.release()
        _local.clear()
