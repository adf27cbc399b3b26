"""The backend for C++ on the CPU, tier 1: candidates with host code, one call at a time, against the judge's clock."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import platform
import random
import socket
import time
from typing import Any

from data.records import Candidate, SandboxError, Status, Task
from sandbox import build, check, compare, slot, timing
from sandbox.backends import Failed, Found, Limits, Measurement, TaskInvalid
from sandbox.confine import FIRST_UID, REFERENCES, Confinement
from sandbox.oracle import Reference
from sandbox.server import Server, round_trip

FAST_MS = 10.0
"""Where the reference takes less, a candidate gets `limits.calls` checked calls, above it fewer, at least LEAST."""
LEAST = 12
EXTRA_S = 1.0
"""Seconds from the first scored call during which more are asked where other programs held up most of them."""
BLOCK = 24
"""Calls of an eager block: one before and one after each candidate."""
IMPLAUSIBLE = 5.0
"""A compiled reference so many times slower than eager is a fault of this measurement, and must not become anybody's speed-up."""
RECENT_S = 1.0
"""An eager block of so long ago still says what the machine is like now."""
LEVELS = {
    "root": "own uid, own root file system, namespaces (mount, pid, net, ipc, uts), limits",
    "userns": "user namespace, own root file system, namespaces (mount, pid, net, ipc, uts), limits",
    "uid": "own uid, limits; no namespaces",
    "process": "limits; no own uid, no namespaces",
}


def slots() -> list[str]:
    return [f"cpu{n}" for n in sorted(os.sched_getaffinity(0))]


@functools.cache
def cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


@dataclasses.dataclass(kw_only=True)
class Prepared:
    """A task on this slot: the reference, its held eager server, and what its compiled form takes relative to eager."""

    reference: Reference
    limits: Limits
    eager: Server
    controls: dict[str, bool]
    compile_over_eager: tuple[float, float, float] | None = None
    flags: tuple[str, ...] = ()
    last: tuple[float, list[float]] = (0.0, [])
    """When the latest eager block ended (monotonic), and the block: the next candidate's `before` where that was a moment ago."""


class Cpp:
    """One per judge process."""

    name = "cpp"

    def __init__(self):
        self.index = int(os.environ.get("SANDBOX_INDEX", "0"))
        self.level: str | None = None
        self.empty_ms, self.filtered = 0.0, False
        self.compile_zygote: tuple[Any, socket.socket] | None = None

    def environment(self) -> dict[str, Any]:
        import torch

        self._clock()
        return {
            "cpu": cpu_model(), "torch": torch.__version__, "threads": 1, "python": platform.python_version(), "compiler": build.compiler_version(),
            "kernel": platform.release(), "isolation": LEVELS[self.level], "isolation_level": self.level, "seccomp": self.filtered, "round_trip_us": round(self.empty_ms * 1e3, 2),
            "timing": "tier 1: judge's clock, closed loop, ptrace stops",
        }  # fmt: skip

    def _clock(self) -> None:
        if self.level is None:
            confinement = Confinement(index=self.index)
            probe = slot.spawn("sandbox.worker:nothing", {}, confinement=confinement)
            self.level = probe.level
            probe.close()
            self.empty_ms, self.filtered = round_trip(confinement)

    def _confinement(self, limits: Limits, **changes) -> Confinement:
        return Confinement(
            index=self.index, memory_bytes=limits.memory_bytes, processes=limits.processes, cpu_s=int(limits.total_s) + 10, **changes
        )

    def prepare(self, task: Task, *, limits: Limits, precision: str, track: str) -> Prepared:
        self._clock()
        try:
            with timing.deadline(limits.total_s):
                reference = Reference(task, precision=precision, limits=limits)
                controls = reference.controls()
        except timing.CallTimeout:
            raise TaskInvalid(f"the reference does not end within {limits.total_s:g} s") from None
        for name, seen in controls.items():
            if not seen:
                raise TaskInvalid(f"degenerate: the control {name!r} passes as a correct answer")
        eager = self._reference_server(reference, limits, role="eager")
        try:
            for _ in range(3):
                eager.call(next(reference.cases("own")), limits.total_s)
        except Failed as failed:
            eager.close()
            raise TaskInvalid(f"the reference fails in its server: {failed.reason}") from failed
        prepared = Prepared(reference=reference, limits=limits, eager=eager, controls=controls)
        known = task.baselines
        if known and all(
            known.environment.get(k) == v for k, v in (("cpu", cpu_model()), ("torch", self._torch()), ("threads", limits.threads))
        ):
            ratio = known.environment.get("compile_over_eager")
            if ratio is None and known.compile_ms:
                ratio = [known.compile_ms / known.eager_ms * f for f in (0.97, 1.0, 1.03)]
            prepared.compile_over_eager = tuple(ratio) if ratio else None
        return prepared

    @staticmethod
    def _torch() -> str:
        import torch

        return torch.__version__

    def release(self, prepared: Prepared) -> None:
        prepared.eager.close()
        prepared.reference.bank.clear()

    def _reference_server(self, reference: Reference, limits: Limits, *, role: str) -> Server:
        """A server that runs the task's own Model through the same protocol."""
        compiled = role == "compile"
        payload = {
            "files": {"task.py": reference.task.source},
            "module": "task",
            "class": "Model",
            "threads": limits.threads,
            "compile": "/tmp/inductor" if compiled else None,
            "headers": self._headers() if compiled else None,
        }
        confinement = dataclasses.replace(self._confinement(limits, may_exec=compiled), index=self.index + REFERENCES)
        if compiled:
            confinement = dataclasses.replace(
                confinement, file_bytes=1 << 30, processes=256, writable=((str(self._inductor_folder()), "/tmp/inductor"),), readable=(self._headers(),)
            )
        server = Server(
            reference, role=role, payload=payload, confinement=confinement, zygote=self._compile_zygote(limits) if compiled else None
        )
        try:
            server.start(limits.total_s)
        except Failed as failed:
            server.close()
            raise TaskInvalid(f"the reference fails in its server: {failed.reason}") from failed
        return server

    def _inductor_folder(self) -> pathlib.Path:
        """Compiled references are kept: only trusted task code writes here, under the slot's uid."""
        owner = FIRST_UID + REFERENCES + self.index if os.geteuid() == 0 else os.getuid()
        # Named after its owner: what another uid left in a folder cannot be locked, and torch.compile then fails at every call.
        folder = build.cache_folder("inductor") / f"slot{self.index}-uid{owner}"
        folder.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, owner, owner)
        return folder

    @staticmethod
    def _headers() -> str:
        """Where the zygote of compiled references keeps inductor's precompiled headers."""
        return str(build.cache_folder("inductor") / "headers")

    def _compile_zygote(self, limits: Limits) -> socket.socket:
        """A second zygote with torch.compile's machinery loaded; started when a compiled baseline is first wanted."""
        if self.compile_zygote is None:
            cpus = os.sched_getaffinity(0)
            process, orders = slot.start_zygote(os.environ.get("SANDBOX_SLOT", ""), self.index, cpus, ("sandbox.inductor",))
            orders.settimeout(120)
            slot.receive_message(orders)
            self.compile_zygote = process, orders
        return self.compile_zygote[1]

    def check(self, candidate: Candidate, *, policy: str) -> None:
        check.check_candidate(candidate, policy=policy, backend="cpp")

    def build(self, candidate: Candidate, *, limits: Limits):
        if not any(name.startswith("kernels/") for name in candidate.files):
            return None
        return build.build(candidate, index=self.index, seconds=limits.build_s, memory_bytes=limits.memory_bytes, cpu=cpu_model())

    def judge(self, prepared: Prepared, candidate: Candidate, built, *, policy: str) -> Found:
        reference, limits = prepared.reference, prepared.limits
        ended, before = prepared.last
        if time.monotonic() - ended > RECENT_S:
            before = self._eager_block(prepared)
        library, functions = built or (None, {})
        inside = built is None and "cpp_extension" in candidate.files.get("model_new.py", "")
        payload = {"files": candidate.files, "module": "model_new", "class": "ModelNew", "threads": limits.threads, "functions": functions}
        confinement = self._confinement(limits, may_exec=inside)
        server = Server(reference, role="candidate", payload=payload, confinement=confinement, library=library)
        log = ""
        try:
            server.start(
                limits.build_s if inside else min(limits.call_s + 20, limits.total_s),
                late=Status.COMPILE_TIMEOUT if inside else Status.TIMEOUT,
            )
            times = self._question(server, prepared, min(before))
        except Failed as failed:
            log = server.close()
            failed.log = (failed.log or log)[-4000:]
            raise
        except timing.CallTimeout:
            server.close()
            raise SandboxError("a judge's own step was cut off") from None
        except BaseException:
            server.close()
            raise
        log = server.close()
        after = self._eager_block(prepared)
        prepared.last = time.monotonic(), after
        return self._found(prepared, server.flags, times, [before, after], tuple(functions), log)

    def _eager_block(self, prepared: Prepared, seconds: float = 0.5) -> list[float]:
        """Milliseconds of some eager calls, no candidate alive. Questions may repeat: the reference remembers nothing."""
        cases = prepared.reference.bank["own"][:8] or [prepared.reference.draw("own")]
        try:
            return self._block(prepared.eager, cases, prepared.limits, seconds)
        except Failed as failed:
            raise SandboxError(f"the eager server failed: {failed.reason}") from failed

    def _block(self, server: Server, cases: list, limits: Limits, seconds: float = 0.5) -> list[float]:
        """Milliseconds of BLOCK undisturbed calls of a reference, or of as many as `seconds` hold."""
        calls, end = [], time.monotonic() + seconds
        while len(calls) < 4 or (time.monotonic() < end and sum(map(timing.quiet, calls)) < BLOCK):
            elapsed, _ = server.call(cases[len(calls) % len(cases)], limits.total_s)
            calls.append(self._net(server, elapsed))
        return timing.undisturbed(calls, 4)

    def _net(self, server: Server, elapsed: float) -> tuple[float, float]:
        """(elapsed, held) of the server's last call in milliseconds, the clock's own cost taken off both."""
        return max(elapsed - self.empty_ms, 1e-4), max(server.watch.held / 1e6 - self.empty_ms, 0.0)

    def _question(self, server: Server, prepared: Prepared, eager_ms: float) -> list[float]:
        """Ask until enough is known: every answer is checked, warm-up too; stress questions stand at secret places.

        Returns milliseconds of the scored calls on the task's own distribution, the clock's own cost taken off.
        """
        reference, limits = prepared.reference, prepared.limits
        secret, sources = random.SystemRandom(), {kind: reference.cases(kind) for kind in reference.kinds}
        end, calls = time.monotonic() + limits.total_s, []
        warm = 2 + secret.randrange(3)
        for _ in range(warm):
            self._ask(server, prepared, sources["own"], "own", end)
        # How many follows from the reference: a candidate that is slow at first must not be asked less.
        wanted = limits.calls + secret.randrange(9)
        if eager_ms >= FAST_MS:
            wanted = max(LEAST, int(wanted * FAST_MS / eager_ms)) + secret.randrange(3)
        # One question of each kind comes early, for a wrong answer should cost little, and one of each stress kind anywhere
        early = list(reference.kinds)
        stress = [kind for kind in early if kind != "own"]
        plan = ["own"] * max(wanted - len(early) - len(stress), LEAST - 1) + stress
        secret.shuffle(plan)
        secret.shuffle(early)
        questions, extra = iter(early + plan), time.monotonic() + EXTRA_S
        while True:
            kind = next(questions, None)
            if kind is None:
                if sum(map(timing.quiet, calls)) >= LEAST or time.monotonic() > extra:
                    return timing.undisturbed(calls)
                kind = "own"  # others crowd this machine: some more, for a short while
            elapsed, problem = self._ask(server, prepared, sources[kind], kind, end)
            if problem:
                self._only_stress(server, prepared, sources["own"], problem, kind, end)
            elif kind == "own":
                calls.append(self._net(server, elapsed))

    def _ask(self, server: Server, prepared: Prepared, source, kind: str, end: float) -> tuple[float, str | None]:
        """Milliseconds of one checked call, and what is wrong with a stress answer; a wrong own answer raises Failed."""
        left = end - time.monotonic()
        if left <= 0:
            raise Failed(Status.TIMEOUT, f"the calls did not end within {prepared.limits.total_s:g} s")
        case = next(source)
        elapsed, outputs = server.call(case, min(prepared.limits.call_s, left))
        problem = compare.difference(outputs, case)
        if problem and kind == "own":
            raise Failed(Status.INCORRECT, problem)
        server.check_buffers(case)
        return elapsed, problem

    def _only_stress(self, server: Server, prepared: Prepared, own, problem: str, kind: str, end: float) -> None:
        """A wrong stress answer: six more own questions tell whether the candidate is wrong everywhere."""
        for _ in range(6):
            self._ask(server, prepared, own, "own", end)
        raise Failed(Status.INCORRECT, f"{problem} (inputs: {kind})", rule="stress")

    def _found(
        self, prepared: Prepared, flags: tuple[str, ...], times: list[float], blocks: list[list[float]], kernels: tuple[str, ...], log: str
    ) -> Found:
        import statistics

        if prepared.compile_over_eager is None and prepared.limits.compile_s:
            self._measure_compile(prepared)
        ours = statistics.median(times)
        eager = statistics.median(t for block in blocks for t in block)
        ratio = prepared.compile_over_eager
        flags = (*flags, *prepared.flags)
        times_ms = {"candidate": ours, "eager": eager} | ({"compile": eager * ratio[1]} if ratio else {})
        speedup = None
        if min(ours, eager) >= timing.RESOLUTION * self.empty_ms:
            against_eager = timing.interval(blocks, times)
            speedup = {"eager": against_eager} | ({"compile": timing.product(against_eager, ratio)} if ratio else {})
        else:
            flags = (*flags, "below_resolution")
        return Found(times_ms=times_ms, speedup=speedup, flags=flags, kernels=kernels, log=log[-4000:])

    def _measure_compile(self, prepared: Prepared) -> None:
        """compile / eager as (low, median, high), both timed now and no candidate alive; 1 with a flag where it cannot compile or the ratio is no fact."""
        reference, limits = prepared.reference, prepared.limits
        try:
            server = self._reference_server(reference, limits, role="compile")
        except TaskInvalid:
            prepared.compile_over_eager, prepared.flags = (1.0, 1.0, 1.0), ("compile_failed",)
            return
        cases = reference.bank["own"][:8] or [reference.draw("own")]
        try:
            for case in (cases * 5)[:5]:
                server.call(case, limits.compile_s)
            before = self._eager_block(prepared, 1.0)
            compiled = self._block(server, cases, limits, 1.5)
            low, middle, high = timing.interval([before, self._eager_block(prepared, 1.0)], compiled)
            prepared.compile_over_eager = (1 / high, 1 / middle, 1 / low)
            if 1 / middle > IMPLAUSIBLE:
                prepared.compile_over_eager, prepared.flags = (1.0, 1.0, 1.0), ("compile_suspect",)
        except Failed:
            prepared.compile_over_eager, prepared.flags = (1.0, 1.0, 1.0), ("compile_failed",)
        finally:
            server.close()

    def measure(self, prepared: Prepared, *, worth: tuple[float, float] | None = None) -> Measurement:
        import statistics

        eager = statistics.median(self._eager_block(prepared))
        compiled = prepared.limits.compile_s > 0 and (worth is None or worth[0] <= eager <= worth[1])
        if compiled:
            # Compiling costs seconds
            self._measure_compile(prepared)
            eager = statistics.median(self._eager_block(prepared))
        reference = prepared.reference
        environment = self.environment() | {"threads": prepared.limits.threads, "flags": list(prepared.flags)}
        if compiled:
            environment["compile_over_eager"] = list(prepared.compile_over_eager)
        return Measurement(
            eager_ms=eager, compile_ms=eager * prepared.compile_over_eager[1] if compiled else None, environment=environment, controls=prepared.controls,
            output_bytes=reference.output_bytes, input_bytes=reference.input_bytes,
        )  # fmt: skip

    def close(self) -> None:
        if self.compile_zygote is not None:
            self.compile_zygote[1].close()
            with contextlib.suppress(Exception):
                self.compile_zygote[0].wait(5)


BACKEND = Cpp
