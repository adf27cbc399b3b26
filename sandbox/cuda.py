"""The cuda backend: brings `plan` candidates (tier 2) and modules with host code (tier 1) to a verdict on one NVIDIA GPU.

The judge process keeps a CUDA context and never runs candidate code: a plan is compiled and launched by a disposable trusted
process, a module runs in a confined child, and both see only memory that the judge exports (cuMemCreate, POSIX descriptor).
Tier 2 is timed by events after an L2 flush, tier 1 by the judge's clock (sandbox/cuda_closed.py). Every timed call has fresh
inputs and poisoned outputs and is compared.
Not here: proof of which kernels a module launched (own_kernel_share is None, the static rule decides).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import time
from typing import Any

from data.records import Candidate, SandboxError, Status, Task
from sandbox import cudriver, plan
from sandbox.backends import Failed, Found, Limits, Measurement, TaskInvalid
from sandbox.cuda_calls import POISONS, calls, check_floor, check_surroundings, compare, restore, speed_of_light, undecided
from sandbox.cuda_memory import Slab
from sandbox.cuda_peer import LEVELS, Peer, confinement, strongest
from sandbox.cuda_task import SLOTS, Prepared, References
from sandbox.cuda_worker import see_only

zygote_imports = ("cupy", "sandbox.cuda_module", "sandbox.cuda_plan")
MODULES = ("cupy", "triton", "cuda_extension", "load_inline", "load")
"""Formats that run as host code in the confined child."""
_CACHED_BUILDS = 256
BANK_SHARE = 8
"""One in so many bytes of what is free on the GPU may hold questions of a task for its next candidates."""


def slots() -> list[str]:
    """UUIDs of the GPUs of this machine (those in CUDA_VISIBLE_DEVICES, when it names UUIDs). Touches no driver; [] without a GPU."""
    found = []
    for path in sorted(pathlib.Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)", path.read_text(errors="replace"))
        found += [match[1]] if match else []
    if not found and shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, timeout=60)
        found = re.findall(r"GPU-[0-9a-fA-F-]+", listed.stdout) if listed.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        wanted = [v.strip() for v in visible.split(",") if v.strip()]
        found = [found[int(v)] if v.isdigit() and int(v) < len(found) else v for v in wanted if v.isdigit() or v in found] if found else []
    return found


def device_node(uuid: str) -> str | None:
    """/dev/nvidiaN of a GPU, None where the driver does not say."""
    for path in pathlib.Path("/proc/driver/nvidia/gpus").glob("*/information"):
        text = path.read_text(errors="replace")
        minor = re.search(r"Device Minor:\s*(\d+)", text)
        if uuid in text and minor:
            return f"/dev/nvidia{minor[1]}"
    return None


def gpu_facts() -> dict[str, Any]:
    """What `doctor` prints: the driver's facts, NVRTC and nvcc; {"error": ...} without a GPU. Run it in a process of its own."""
    try:
        facts = cudriver.facts()
    except cudriver.CudaError as error:
        return {"error": str(error)}
    facts["peak_bandwidth_gb_s"] = round(cudriver.peak_bandwidth(facts) / 1e9)
    try:
        cubin, _ = cudriver.compile_source('extern "C" __global__ void f(float* y) { y[0] = 1.0f; }', facts["arch"])
        facts["nvrtc"] = f"works, {len(cubin)} bytes"
    except cudriver.CudaError as error:
        facts["nvrtc"] = f"{error} {error.log}".strip()
    from sandbox.cuda_build import nvcc

    facts["nvcc"] = nvcc()
    return facts


@dataclasses.dataclass(kw_only=True)
class Built:
    """A compiled plan and the server that holds it (None once used), or a library of a module's kernels, or nothing."""

    peer: Peer | None = None
    cubin: bytes | None = None
    library: tuple[bytes, dict] | None = None
    log: str = ""


class CudaBackend:
    """One per judge process; see sandbox/backends.py for the calls."""

    name = "cuda"

    def __init__(self):
        lease = os.environ.get("SANDBOX_SLOT", "")
        if lease.startswith("GPU-"):
            see_only(lease)
        import torch

        from sandbox.cuda_closed import ClosedLoop

        if not torch.cuda.is_available():
            raise SandboxError("got no CUDA device, wanted an NVIDIA GPU and its driver (python -m sandbox.doctor)")
        torch.zeros(1, device="cuda")
        cudriver.start()
        self.facts = cudriver.facts()
        self.facts["node"] = device_node(self.facts["uuid"])
        self.flush_bytes = 2 * self.facts["l2_bytes"]
        self.index = int(os.environ.get("SANDBOX_INDEX", "0"))
        self.level, self.refused = self._isolation()
        self.references = References(self.facts, self.environment())
        self.closed = ClosedLoop(self.facts, self.references)
        self.builds: dict[tuple, bytes | Failed] = {}
        self.open: Built | None = None

    def _isolation(self) -> tuple[int | None, str]:
        """Strongest confinement in which CUDA works, None where there is none: then only plans can be judged. And why not better."""
        import torch

        one = torch.zeros(16, device="cuda")
        slab = Slab(inputs=[one], outputs=[one], state={}, slots=1, flush_bytes=1 << 20)
        try:
            level, reasons = strongest(self.facts, self.index, slab)
            return level, "; ".join(reasons)
        except SandboxError as error:
            return None, str(error)
        finally:
            slab.close()

    def environment(self) -> dict[str, Any]:
        import torch

        return {
            "gpu": self.facts["name"],
            "gpu_uuid": self.facts["uuid"],
            "driver": self.facts["driver"],
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "arch": self.facts["arch"],
            "l2_bytes": self.facts["l2_bytes"],
            "peak_bandwidth_gb_s": round(cudriver.peak_bandwidth(self.facts) / 1e9),
            "memory": "vmm_posix_fd",
            "isolation": LEVELS[self.level] if self.level is not None else "none",
            "isolation_refused": self.refused,
            "protocol": {"plan": "device events after L2 flush", "module": "judge's clock, closed loop, less empty round trip"},
        }

    # ---- check and build ----

    def check(self, candidate: Candidate, *, policy: str) -> None:
        """A plan's format and policy; the static rules for modules. Raises Failed."""
        if candidate.format == "plan":
            try:
                parsed = plan.parse(candidate.files)
            except plan.PlanError as error:
                raise Failed(Status.FORMAT_ERROR, str(error)) from None
            if policy == "own_kernels_only" and parsed.library_steps:
                raise Failed(Status.REJECTED, f"library step {parsed.library_steps[0]} under own_kernels_only", rule="library_kernel")
            return
        if candidate.format not in MODULES:
            raise Failed(Status.FORMAT_ERROR, f"format: got {candidate.format}, wanted plan, {', '.join(MODULES)} on cuda")
        from sandbox.check import check_candidate

        check_candidate(candidate, policy=policy, backend="cuda")

    def build(self, candidate: Candidate, *, limits: Limits) -> Built:
        """NVRTC for plans, nvcc for kernels/*.cu; other modules compile when they load. Raises Failed."""
        self._drop()
        if candidate.format == "cuda_extension":
            from sandbox.cuda_build import build_library

            library = build_library(candidate, arch=self.facts["arch"], index=self.index, seconds=limits.build_s)
            return Built(library=library)
        if candidate.format != "plan":
            return Built()
        known = self.builds.get((candidate.files["kernels.cu"], self.facts["arch"]))
        if isinstance(known, Failed):
            raise known
        self.open = self._open_plan(candidate, known, limits.build_s)
        return self.open

    def _open_plan(self, candidate: Candidate, cubin: bytes | None, seconds: float, tf32: bool = False) -> Built:
        """A plan server that has compiled (or been given) its kernels. Raises Failed, remembered where it is the source's fault."""
        payload = {"files": candidate.files, "arch": self.facts["arch"], "cubin": cubin.hex() if cubin else None, "tf32": tf32}
        peer = Peer("sandbox.cuda_plan:plan_server", payload | {"gpu": self.facts["uuid"]}, confinement=None, trusted=True)
        # The compiler reads candidate text: its silence or death is the candidate's
        peer.ran = True
        key = (candidate.files["kernels.cu"], self.facts["arch"])
        try:
            answer = peer.ask(b"C", seconds=seconds, wanted=b"C", late=Status.COMPILE_TIMEOUT)
        except Failed as error:
            if error.status is Status.RUNTIME_ERROR:
                error = Failed(Status.COMPILE_ERROR, f"the compiler failed: {error}", log=error.log)
            self._remember(key, error)
            raise error from None
        peer.ran = False
        size = struct.unpack("<I", answer[:4])[0]
        self._remember(key, answer[4 + size :])
        return Built(peer=peer, cubin=answer[4 + size :], log=answer[4 : 4 + size].decode(errors="replace"))

    def _remember(self, key: tuple, found: bytes | Failed) -> None:
        self.builds[key] = found
        while len(self.builds) > _CACHED_BUILDS:
            del self.builds[next(iter(self.builds))]

    def _drop(self) -> None:
        if self.open is not None and self.open.peer is not None:
            self.open.peer.close()
            self.open.peer = None
        self.open = None

    # ---- the task ----

    def prepare(self, task: Task, *, limits: Limits, precision: str, track: str) -> Prepared:
        """Reference and baselines with no candidate alive. Raises TaskInvalid."""
        import torch

        from sandbox.oracle import BANK_BYTES, Reference

        # A server that waits with a compiled plan has run nothing yet, but holds the card's memory
        self._drop()
        start = time.perf_counter()
        torch.backends.cuda.matmul.allow_tf32 = track == "tf32"
        try:
            # Four times inputs and outputs, as the oracle asks, within half of what is free now
            free = torch.cuda.mem_get_info()[0]
            within = dataclasses.replace(limits, memory_bytes=free // 2)
            reference = Reference(task, device="cuda", precision=precision, limits=within, bank_bytes=max(BANK_BYTES, free // BANK_SHARE))
            inputs, outputs = list(reference.inputs), list(reference.outputs)
            slab = Slab(inputs=inputs, outputs=outputs, state=reference.state, slots=SLOTS, flush_bytes=self.flush_bytes)
        except (torch.OutOfMemoryError, cudriver.CudaError) as error:
            raise TaskInvalid(f"does not fit: {str(error)[:300]}") from None
        prepared = Prepared(task=task, reference=reference, limits=limits, precision=precision, track=track, slab=slab)
        prepared.seconds["reference"] = time.perf_counter() - start
        try:
            self.references.measure(prepared)
        except BaseException:
            self.release(prepared)
            raise
        return prepared

    def measure(self, prepared: Prepared, *, worth: tuple[float, float] | None = None) -> Measurement:
        """Controls of the oracle and device times of the baselines, which `prepare` took already."""
        medians = {key: statistics.median(blocks[0]) for key, blocks in prepared.device.items()}
        facts = {"wall_ms": {key: round(v, 5) for key, v in prepared.wall.items()}}
        facts |= {"compile_refused": prepared.compile_refused} if prepared.compile_refused else {}
        return Measurement(
            eager_ms=medians["eager"],
            compile_ms=medians.get("compile"),
            floor_ms=prepared.floor_ms,
            environment=self.environment() | facts,
            controls=prepared.reference.controls(),
            output_bytes=prepared.output_bytes,
            input_bytes=prepared.input_bytes,
        )

    def release(self, prepared: Prepared) -> None:
        self.references.forget(prepared)
        prepared.slab.close()

    # ---- candidates ----

    def judge(self, prepared: Prepared, candidate: Candidate, built: Built, *, policy: str) -> Found:
        """One candidate of either tier. Raises Failed."""
        import torch

        torch.backends.cuda.matmul.allow_tf32 = prepared.track == "tf32"
        if candidate.format != "plan":
            if self.level is None:
                raise SandboxError(f"no confinement for host code: {self.refused}")
            around = confinement(self.level, self.index, self.facts, processes=max(256, prepared.limits.processes))
            return self.closed.judge(prepared, candidate, built.library, around)
        try:
            return self._judge_plan(prepared, candidate, built)
        except BaseException:
            restore(prepared)
            raise

    def _judge_plan(self, prepared: Prepared, candidate: Candidate, built: Built) -> Found:
        from sandbox.timing import interval

        parsed = plan.parse(candidate.files)
        tf32 = prepared.track == "tf32" and bool(parsed.library_steps)
        if built.peer is None or tf32:
            self._drop()
            peer = self._open_plan(candidate, built.cubin, prepared.limits.build_s, tf32).peer
        else:
            peer = built.peer
        built.peer = self.open = None
        with contextlib.closing(peer):
            device, wall, share, steps = self._run_plan(prepared, peer)
        own = statistics.median(device)
        check_surroundings(prepared)
        check_floor(prepared, own)
        _check_clock(own, min(wall), steps)
        self.references.measure_again(prepared)
        speedup = {key: interval(blocks, device) for key, blocks in prepared.device.items()}
        medians = {key: statistics.median([s for block in blocks for s in block]) for key, blocks in prepared.device.items()}
        flags = ["launch_bound"] if statistics.median(wall) > 2 * own else []
        flags += ["undecided"] if undecided(speedup) else []
        return Found(
            times_ms={"candidate": statistics.median(wall)} | prepared.wall,
            device_ms={"candidate": own} | medians,
            speedup=speedup,
            flags=tuple(flags),
            own_kernel_share=share,
            kernels=parsed.launched,
            speed_of_light=speed_of_light(prepared, self.facts, own),
            log=built.log,
        )

    def _run_plan(self, prepared: Prepared, peer: Peer) -> tuple[list[float], list[float], float, int]:
        """Checked calls: (device ms, wall ms of the synchronized calls, own kernel share of the time, number of steps)."""
        peer.share(prepared.slab, prepared.layout)
        # Until here no candidate code has run; from here on every failure is its own
        peer.ran = True
        peer.ask(b"B", seconds=30.0, wanted=b"M")
        device, wall = [], []
        for timing, took in calls(prepared, lambda *a: self._call_plan(prepared, peer, *a), lambda took: took[1]):
            if timing == "device":
                device.append(took[0])
            elif timing == "wall":
                wall.append(took[1])
        times = json.loads(peer.ask(b"Z" + struct.pack("<I", 0), seconds=prepared.limits.call_s, wanted=b"J"))
        total = sum(ms for _, _, ms in times) or 1.0
        return device, wall, sum(ms for _, kind, ms in times if kind == "kernel") / total, len(times)

    def _call_plan(self, prepared: Prepared, peer: Peer, case: Any, timing: str, number: int) -> tuple[float, float]:
        """One call with fresh inputs and poisoned outputs, compared before the next: (device ms, wall ms)."""
        import torch

        slot, slab = number % SLOTS, prepared.slab
        slab.write(slot, case.inputs)
        slab.poison(slot, POISONS[number % len(POISONS)])
        torch.cuda.synchronize()
        took = peer.timed(slot, seconds=prepared.limits.call_s, wall=timing == "wall")
        compare(prepared, case, slot, slab.capture(slot))
        return took


def _check_clock(device_ms: float, wall_ms: float, steps: int) -> None:
    # Device code could reach the memory that events are written to; the host's clock it could not. The least wall time, since a
    # busy host makes the others longer and no candidate makes any shorter.
    if device_ms < 0.5 * (wall_ms - 0.05 - 0.02 * steps):
        raise Failed(Status.REJECTED, f"events say {device_ms:.4f} ms, the host's clock {wall_ms:.4f} ms", rule="clock")


BACKEND = CudaBackend
