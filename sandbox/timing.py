"""Clocks and intervals. The clock is the judge's: from the moment a stopped server may run on, with its inputs in place, to
the moment when all its threads are stopped again after its answer. What a server says about time counts for nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import statistics
import time

from sandbox.confine import libc

libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
CONT, SEIZE, INTERRUPT, GETEVENTMSG = 7, 0x4206, 0x4207, 0x4201
ALL_CHILDREN = 0x40000000
# New threads are traced from birth, forks and execs are reported, all are killed with the judge.
TRACE_THREADS, TRACE_PROCESSES = 1 | 8 | (1 << 20), 2 | 4 | 16
EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_STOP = 1, 2, 3, 4, 128
FATAL = set(range(1, 32)) - {
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGURG,
    signal.SIGWINCH,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGTRAP,
}
"""Signals that end a process which neither handles nor ignores them."""
RESOLUTION = 20.0
"""A ratio is credited only where both times exceed this many empty round trips."""


class Died(Exception):
    """The server's process has ended; `status` is its wait status."""

    def __init__(self, status: int):
        super().__init__(status)
        self.status = status


class CallTimeout(Exception):
    """No answer in time."""


class Untraceable(Exception):
    """A process beside the server, or one that could not be stopped."""


def _alarm(number, frame):
    raise CallTimeout


@contextlib.contextmanager
def deadline(seconds: float):
    """CallTimeout in this (main) thread after `seconds`."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Stopwatch:
    """Holds a server process stopped, lets it run for one call at a time and measures the call.

    ptrace stops cannot be undone from inside (SIGCONT, timers and signal tricks do not end them), new threads are caught at
    birth, and a process that the server starts after `attach` ends the judgement.
    """

    def __init__(self, pid: int, *, may_fork: bool = False):
        self.pid, self.may_fork, self.gone = pid, may_fork, False
        self.threads: set[int] = set()
        self.strangers: set[int] = set()
        self.pending: dict[int, int] = {}
        self.held = 0
        """Nanoseconds of the last run that none of the server's threads spent on a core: they stood ready or slept, or the judge came late."""
        # The clock of a process's CPU time (clock_getcpuclockid(3)): all its threads, those that have ended too
        self.account = (~pid << 3) | 2

    def _on_core(self) -> int:
        """The kernel's own account, in nanoseconds."""
        try:
            return time.clock_gettime_ns(self.account)
        except OSError:  # the process is gone, and the wait for its answer says so
            return 0

    def _list(self) -> set[int]:
        try:
            return {int(t) for t in os.listdir(f"/proc/{self.pid}/task")}
        except FileNotFoundError:
            return set()

    def attach(self) -> None:
        """Trace every thread. The server must then be told to go on; its first SIGTRAP leaves it stopped."""
        if not self.may_fork:
            self._end_helpers()
        options = TRACE_THREADS | (0 if self.may_fork else TRACE_PROCESSES)
        while missing := self._list() - self.threads:
            for tid in missing:
                if libc.ptrace(SEIZE, tid, None, options) < 0 and os.path.exists(f"/proc/{self.pid}/task/{tid}"):
                    raise Untraceable(f"thread {tid} cannot be traced: {os.strerror(ctypes.get_errno())}")
                self.threads.add(tid)

    def children(self) -> list[int]:
        found = []
        for tid in self._list():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{self.pid}/task/{tid}/children") as listing:
                found += [int(p) for p in listing.read().split()]
        return found

    def _end_helpers(self) -> None:
        """Processes that a build inside the candidate left over. Threads stay: pools are honest."""
        for _ in range(100):
            alive = [p for p in self.children() if not _is_zombie(p)]
            if not alive:
                return
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        raise Untraceable("a helper process does not end")

    def run(self) -> int:
        """Let the server go on until it rings and all threads are stopped: nanoseconds.

        Raises Died, Untraceable, and CallTimeout under `deadline`.
        """
        ptrace, pending, before = libc.ptrace, self.pending, self._on_core()
        begin = time.perf_counter_ns()
        for tid in self.threads:
            ptrace(CONT, tid, None, pending.pop(tid, None))
        self._until_ring()
        elapsed = time.perf_counter_ns() - begin
        self.held = max(0, elapsed - (self._on_core() - before))
        return elapsed

    def first_stop(self) -> None:
        self._until_ring()

    def _until_ring(self) -> None:
        while True:
            tid, status = os.waitpid(-1, ALL_CHILDREN)
            if status == 0x57F and tid in self.threads:  # stopped by SIGTRAP, no event: the ring
                break
            self._event(tid, status)
        if len(self.threads) > 1:
            self._stop_others(tid)

    def _event(self, tid: int, status: int, *, resume: bool = True) -> None:
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            self.threads.discard(tid)
            if tid == self.pid:
                self.gone = True
                raise Died(status)
            return
        event, message = status >> 16, ctypes.c_ulong()
        if event in (EVENT_FORK, EVENT_VFORK, EVENT_CLONE):
            libc.ptrace(GETEVENTMSG, tid, None, ctypes.addressof(message))
        if event in (EVENT_FORK, EVENT_VFORK):
            self.strangers.add(message.value)
        if event == EVENT_CLONE:
            # Its own first stop may have been seen already, and even its end.
            if os.path.exists(f"/proc/{self.pid}/task/{message.value}"):
                self.threads.add(message.value)
        elif event in (EVENT_FORK, EVENT_VFORK, EVENT_EXEC):
            raise Untraceable("the candidate started a process while it was being judged")
        elif event == EVENT_STOP and tid not in self.threads:
            if tid not in self._list():
                self.strangers.add(tid)
                raise Untraceable("the candidate started a process while it was being judged")
            self.threads.add(tid)
        deliver = os.WSTOPSIG(status) if event == 0 else 0
        if deliver in FATAL and not self._handles(tid, deliver):
            # The first process of a PID namespace that is traced survives its own faults: the end is brought about here.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            raise Died(deliver)
        if resume:
            libc.ptrace(CONT, tid, None, deliver or None)
        elif deliver and deliver != signal.SIGTRAP:
            self.pending[tid] = deliver

    @staticmethod
    def _handles(tid: int, number: int) -> bool:
        with contextlib.suppress(OSError), open(f"/proc/{tid}/status") as status:
            masks = [int(line.split()[1], 16) for line in status if line.startswith(("SigIgn:", "SigCgt:"))]
            return any(mask >> (number - 1) & 1 for mask in masks)
        return False

    def _stop_others(self, ringer: int) -> None:
        stopped = {ringer}
        while waiting := self.threads - stopped:
            for tid in waiting:
                libc.ptrace(INTERRUPT, tid, None, None)
            for tid in waiting:
                _, status = os.waitpid(tid, ALL_CHILDREN)
                self._event(tid, status, resume=False)
                stopped.add(tid)

    def confirm(self) -> None:
        """After a stop: nothing of the server's runs. Raises Untraceable."""
        if self._list() != self.threads:
            raise Untraceable("a thread of the candidate could not be stopped")
        if any(not _is_zombie(p) for p in self.children()):
            raise Untraceable("the candidate keeps a process beside its server")

    def read(self, address: int, target) -> bool:
        """Fill the ctypes-addressable `target` (address, size) from the stopped process; False when that memory is not there."""
        where, size = target
        done = 0
        while done < size:
            local, remote = (ctypes.c_size_t * 2)(where + done, size - done), (ctypes.c_size_t * 2)(address + done, size - done)
            count = libc.process_vm_readv(
                self.pid, ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), ctypes.c_ulong(0)
            )
            if count <= 0:
                return False
            done += count
        return True

    def reap(self, seconds: float = 10.0) -> None:
        """After the kill: a tracer takes the ends of all it traced, else the keeper never sees the process go."""
        for pid in self.strangers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + seconds
        while (self.strangers or (os.path.exists(f"/proc/{self.pid}") and not self.gone)) and time.monotonic() < end:
            try:
                tid, status = os.waitpid(-1, ALL_CHILDREN | os.WNOHANG)
            except ChildProcessError:
                return
            if tid == 0:
                time.sleep(0.0005)
            elif os.WIFSTOPPED(status):
                libc.ptrace(CONT, tid, None, None)
            else:
                self.strangers.discard(tid)
                self.gone = self.gone or tid == self.pid


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def quiet(call: tuple[float, float]) -> bool:
    """True where a call (elapsed, held; milliseconds) spent less than 5 % and 20 microseconds off its core."""
    return call[1] <= 0.02 + 0.05 * call[0]


def undisturbed(calls: list[tuple[float, float]], least: int = 8) -> list[float]:
    """Milliseconds of the calls (elapsed, held) that nothing held up; where those are few, the least held up.

    The account is the kernel's, and leaving calls out never pays: a candidate that sleeps in its slow calls, so that only the fast ones
    stay, gets the CPU time of all of them.
    """
    kept = [call[0] for call in calls if quiet(call)]
    if len(kept) < least:
        kept = [elapsed for elapsed, _ in sorted(calls, key=lambda c: c[1] / c[0])[:least]]
    busy = [elapsed - held for elapsed, held in calls]
    return kept if statistics.median(kept) >= statistics.median(busy) else busy


def product(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float, float]:
    """Interval of the product of two independent ratios: relative half-widths add in quadrature."""
    middle = a[1] * b[1]
    low = math.hypot(math.log(a[1] / a[0]), math.log(b[1] / b[0]))
    high = math.hypot(math.log(a[2] / a[1]), math.log(b[2] / b[1]))
    return middle * math.exp(-low), middle, middle * math.exp(high)


def interval(reference_ms: list[list[float]], candidate_ms: list[float], *, resamples: int = 1000) -> tuple[float, float, float]:
    """95 % interval (low, median, high) of median(reference) / median(candidate), by bootstrap over calls.

    The reference comes in blocks timed before and after the candidate: what it drifted between them widens both ends, since the
    candidate stood somewhere on that way. Raises ValueError on empty, non-finite or non-positive times.
    """
    import numpy

    times = [t for block in reference_ms for t in block]
    if not times or not candidate_ms or not all(math.isfinite(t) and t > 0 for t in [*times, *candidate_ms]):
        raise ValueError(f"times: got {times[:3]} and {candidate_ms[:3]}, wanted positive finite milliseconds")
    rng = numpy.random.default_rng(int.from_bytes(os.urandom(8), "little"))

    def medians(values: list[float]):
        values = numpy.asarray(values)
        return numpy.median(values[rng.integers(0, len(values), (resamples, len(values)))], axis=1)

    ratios = medians(times) / medians(candidate_ms)
    middle = float(numpy.median(times) / numpy.median(candidate_ms))
    blocks = [float(numpy.median(block)) for block in reference_ms if block]
    drift = math.sqrt(max(blocks) / min(blocks))
    low, high = numpy.quantile(ratios, (0.025, 0.975))
    return min(float(low) / drift, middle), middle, max(float(high) * drift, middle)
