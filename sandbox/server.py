"""The judge's handle on one CPU server process (candidate, eager or compiled reference): shared inputs, calls, outputs.

Every way in which the process can fail is a `Failed` here; callers who run a reference turn it into a fact about the task.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import secrets
import signal
import struct
import time

from data.records import SandboxError, Status
from sandbox import compare, slot, timing, worker
from sandbox.backends import Failed
from sandbox.confine import Confinement
from sandbox.oracle import Case, Reference, TensorSpec

INPUT_SLOTS = 2
"""Places for inputs: pointers move between calls as well as contents."""
F_ADD_SEALS, SEALS = 1033, 1 | 2 | 4  # no more seals, no shrinking, no growing: a shrunk file would kill the judge by SIGBUS


def _aligned(size: int) -> int:
    return (size + 4095) // 4096 * 4096


def shared_memory(reference: Reference) -> tuple[int, mmap.mmap, list[list]]:
    """Sealed memfd, our mapping, and the layout of the input slots."""
    place, slots = worker.HEADER, []
    for _ in range(INPUT_SLOTS):
        items = []
        for spec in reference.inputs:
            if isinstance(spec, TensorSpec):
                items.append(
                    {
                        "dtype": compare.name_of(spec.dtype),
                        "shape": spec.shape,
                        "stride": spec.stride,
                        "elements": spec.span,
                        "offset": place,
                    }
                )
                place += _aligned(spec.nbytes)
            else:
                items.append([spec])
        slots.append(items)
    fd = os.memfd_create("inputs", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, place)
    import fcntl

    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return fd, mmap.mmap(fd, 0), slots


class Server:
    """One process that answers calls. `role` is "candidate", "eager" or "compile"."""

    def __init__(
        self, reference: Reference, *, role: str, payload: dict, confinement: Confinement, library: bytes | None = None, zygote=None
    ):
        import torch

        self.reference, self.role = reference, role
        fd, self.memory, self.layout = shared_memory(reference)
        self.views = [[worker._view(torch, self.memory, item) for item in items] for items in self.layout]
        fds, code = (fd,), None
        if library is not None:
            code = os.memfd_create("library", os.MFD_CLOEXEC)
            os.write(code, library)
            fds = (fd, code)
        low = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}[reference.precision]
        self.watched = changing_buffers(reference)
        # Answers call for call what the reference's buffers should be; made when a candidate is first asked
        self.replica = None
        payload = payload | {"slots": self.layout, "structure": reference.structure, "train": reference.train, "dtype": low}
        payload |= {"watched": self.watched, "init": _saved(reference.init_inputs), "state": _saved(reference.state)}
        self.child = slot.spawn("sandbox.worker:serve", payload, fds=fds, confinement=confinement, zygote=zygote)
        self.watch = timing.Stopwatch(self.child.pid, may_fork=role != "candidate")
        self.flags: tuple[str, ...] = ()
        self.buffers = [torch.empty(spec.shape, dtype=spec.dtype) for spec in reference.outputs]
        for used in fds:
            os.close(used)

    def start(self, seconds: float, *, late: Status = Status.TIMEOUT) -> None:
        """Wait until the model stands, then hold the process. Raises Failed."""
        end = time.monotonic() + seconds
        message = self._hear(end)
        if message is None:
            report = self.child.wait(0.5)
            if report is None:
                raise Failed(late, f"not ready within {seconds:g} s")
            raise self._ended(report["status"], "while it was loaded")
        if not message.get("ready"):
            raise self._told(message)
        flags = message.get("flags")
        self.flags = ("weights_by_shape",) if flags == ["weights_by_shape"] else ()
        try:
            with timing.deadline(end - time.monotonic()):
                self.watch.attach()
                self.child.channel.sendall(b"g")
                self.watch.first_stop()
        except timing.CallTimeout:
            raise Failed(late, f"not ready within {seconds:g} s") from None
        except timing.Untraceable as error:
            raise Failed(Status.REJECTED, str(error), rule="process") from None
        except (timing.Died, OSError) as error:
            raise self._ended(getattr(error, "status", None), "while it was loaded") from None

    def call(self, case: Case, seconds: float) -> tuple[float, list]:
        """Answer one case: milliseconds and the outputs in our memory (valid until the next call). Raises Failed."""
        place = secrets.randbelow(INPUT_SLOTS)
        for view, value in zip(self.views[place], case.inputs, strict=True):
            if hasattr(value, "copy_"):
                view.copy_(value)
        self.memory[:64] = struct.pack("<qB", 0, place).ljust(64, b"\0")
        try:
            with timing.deadline(seconds):
                elapsed = self.watch.run()
        except timing.CallTimeout:
            raise Failed(Status.TIMEOUT, f"no answer within {seconds:g} s") from None
        except timing.Untraceable as error:
            raise Failed(Status.REJECTED, str(error), rule="process") from None
        except (timing.Died, ChildProcessError) as error:
            raise self._ended(getattr(error, "status", None), "during a call") from None
        if self.role != "candidate":
            return elapsed / 1e6, []
        try:
            self.watch.confirm()
        except timing.Untraceable as error:
            raise Failed(Status.REJECTED, str(error), rule="process") from None
        outputs = self._outputs(place)
        self._unchanged(place, case)
        return elapsed / 1e6, outputs

    def _outputs(self, place: int) -> list:
        answer = struct.unpack_from("<q", self.memory, 0)[0]
        if answer != worker.ANSWERED:
            message = self._hear(time.monotonic())
            raise self._told(message) if message else Failed(Status.INCORRECT, "no output")
        for number, (spec, buffer) in enumerate(zip(self.reference.outputs, self.buffers, strict=True)):
            pointer, dtype, shape, stride = self._described(64 + number * worker.OUTPUT.size)
            if (dtype, shape) != (compare.name_of(spec.dtype), spec.shape):
                raise Failed(
                    Status.INCORRECT,
                    f"output {number}: got {dtype} {shape}, wanted {compare.name_of(spec.dtype)} {spec.shape}",
                    rule="contract",
                )
            if not buffer.numel():
                continue
            if _same_layout(shape, stride, buffer.stride()):
                target = buffer
            elif _same_layout(shape, stride, spec.stride) and spec.span == buffer.numel():
                target = buffer.as_strided(spec.shape, spec.stride)
                self.buffers[number] = target
            else:
                raise Failed(
                    Status.INCORRECT, f"output {number}: got strides {stride}, wanted a contiguous tensor or {spec.stride}", rule="contract"
                )
            if not self.watch.read(pointer, (buffer.data_ptr(), buffer.numel() * buffer.element_size())):
                raise Failed(Status.INCORRECT, f"output {number}: its memory is not there", rule="contract")
        return self.buffers

    def _described(self, place: int) -> tuple[int, str, tuple, tuple]:
        """(pointer, dtype, shape, stride) as the child says; nonsense reads as "unknown" or as no dimensions."""
        pointer, code, dims, _, *rest = worker.OUTPUT.unpack_from(self.memory, place)
        dtype = worker.DTYPES[code] if 0 <= code < len(worker.DTYPES) else "unknown"
        dims = dims if 0 <= dims <= worker.MAX_DIMS else 0
        return pointer, dtype, tuple(rest[:dims]), tuple(rest[worker.MAX_DIMS : worker.MAX_DIMS + dims])

    def _unchanged(self, place: int, case: Case) -> None:
        """Inputs as they were, or as the reference leaves them. Raises Failed."""
        found = compare.inputs_left(self.views[place], case)
        if found is not None:
            raise Failed(Status.INCORRECT, f"input {found[0]}{found[1]}", rule=found[2])

    def check_buffers(self, case: Case) -> None:
        """After each call: the buffers that the reference changes (running statistics) are what it leaves after the same calls. Raises Failed."""
        import torch

        if not self.watched:
            return
        if self.replica is None:
            self.replica = self.reference._instance(self.reference.state)
        self.reference._forward(self.replica, case.inputs)
        state = self.replica.state_dict()
        for number, name in enumerate(self.watched):
            wanted, got = state[name], torch.empty_like(state[name], memory_format=torch.contiguous_format)
            pointer, dtype, shape, stride = self._described(worker.BUFFERS + number * worker.OUTPUT.size)
            if (dtype, shape) != (compare.name_of(wanted.dtype), tuple(wanted.shape)) or not _same_layout(shape, stride, got.stride()):
                text = f"buffer {name}: got {dtype} {shape}, wanted a contiguous {compare.name_of(wanted.dtype)} {tuple(wanted.shape)}"
                raise Failed(Status.INCORRECT, text, rule="buffers")
            if not self.watch.read(pointer, (got.data_ptr(), got.numel() * got.element_size())):
                raise Failed(Status.INCORRECT, f"buffer {name}: its memory is not there", rule="buffers")
            problem = compare.wrong(got, wanted, compare.effect(wanted.dtype))
            if problem:
                raise Failed(Status.INCORRECT, f"buffer {name} after the call{problem}", rule="buffers")

    def _hear(self, end: float) -> dict | None:
        """One message of the child, or None. Anything odd is the child's fault and reads as a plain error."""
        channel, data = self.child.channel, b""
        wanted = 4
        while len(data) < wanted:
            channel.settimeout(max(end - time.monotonic(), 0.02))
            try:
                part = channel.recv(wanted - len(data))
            except (TimeoutError, OSError):
                return None
            if not part:
                return None
            data += part
            if wanted == 4 and len(data) == 4:
                wanted = 4 + struct.unpack("<I", data)[0]
                if wanted > 65536:
                    return {"error": "odd", "text": "an odd message"}
        try:
            message = json.loads(data[4:])
        except ValueError:
            message = None
        return message if isinstance(message, dict) else {"error": "odd", "text": "an odd message"}

    def _told(self, message: dict) -> Failed:
        text = str(message.get("text", ""))[:2000]
        reason = next((line for line in text.splitlines() if line.strip()), "failed without a word")[:300]
        kinds = {"memory": Status.OUT_OF_MEMORY, "compile": Status.COMPILE_ERROR, "contract": Status.INCORRECT, "state": Status.INCORRECT}
        kind = message.get("error") if isinstance(message.get("error"), str) else "odd"
        rule = {"contract": "contract", "state": "parameters"}.get(kind)
        return Failed(kinds.get(kind, Status.RUNTIME_ERROR), reason, rule=rule, log=text)

    def _ended(self, status: int | None, when: str) -> Failed:
        self.watch.reap()
        self.child.kill()
        report = self.child.wait(5.0) or {}
        status = report.get("status", signal.SIGKILL) if status is None else status
        log = report.get("log", "")
        message = self._hear(time.monotonic())
        if message and "error" in message and os.WIFEXITED(status):
            failed = self._told(message)
            failed.log = log
            return failed
        if report.get("lost") and when == "while it was loaded":
            return SandboxError("the keeper of a candidate was lost")
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name if os.WTERMSIG(status) in set(signal.Signals) else str(os.WTERMSIG(status))
            late = os.WTERMSIG(status) in (signal.SIGXCPU,)
            return Failed(Status.TIMEOUT if late else Status.RUNTIME_ERROR, f"the process ended by {name} {when}", log=log)
        return Failed(Status.RUNTIME_ERROR, f"the process left with exit code {os.WEXITSTATUS(status)} {when}", log=log)

    def close(self) -> str:
        """Kill and reap; gives back the end of what the process printed."""
        self.child.kill()
        self.watch.reap()
        report = self.child.close() or {}
        self.views, self.buffers = [], []
        return report.get("log", "")


def changing_buffers(reference: Reference) -> list[str]:
    """Names of the parameters and buffers that forward changes: what the reference's own calls have moved so far."""
    now = reference.model.state_dict()
    return [name for name, value in reference.state.items() if value.numel() and compare.changed(now[name], value)][: worker.MAX_BUFFERS]


def _same_layout(shape: tuple, stride: tuple, wanted: tuple) -> bool:
    return all(size <= 1 or a == b for size, a, b in zip(shape, stride, wanted, strict=True))


def _saved(value) -> bytes:
    import torch

    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def is_filtered(pid: int) -> bool:
    """True where the kernel says that a seccomp filter stands on a child."""
    with open(f"/proc/{pid}/status") as status:
        return "\nSeccomp:\t2\n" in status.read()


def round_trip(confinement: Confinement, calls: int = 400) -> tuple[float, bool]:
    """Milliseconds of the fastest empty call there is, with no candidate alive: what the clock itself costs. And is it filtered?"""
    fd = os.memfd_create("nothing")
    child = slot.spawn("sandbox.worker:idle", {}, fds=(fd,), confinement=confinement)
    os.close(fd)
    watch = timing.Stopwatch(child.pid)
    try:
        child.channel.settimeout(20)
        if not child.channel.recv(4096):
            raise SandboxError("the empty server does not come up")
        with timing.deadline(20):
            watch.attach()
            child.channel.sendall(b"g")
            watch.first_stop()
            return min(watch.run() for _ in range(calls)) / 1e6, is_filtered(child.pid)
    except (timing.Died, timing.Untraceable, timing.CallTimeout, OSError) as error:
        raise SandboxError(f"no clock: {type(error).__name__}: {error}") from error
    finally:
        child.kill()
        watch.reap()
        child.close()
