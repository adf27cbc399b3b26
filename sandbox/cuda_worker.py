"""What runs beside the judge on a GPU: servers that map the judge's memory and do one call at a time.

This file: frames, the loop of a server, tensors over mapped memory. The servers: sandbox/cuda_plan.py, sandbox/cuda_module.py.

Frames on the socket: 4 bytes of length, then the message; its first byte is the command or the answer.
    S json + descriptor: map memory -> M           L json: load a module -> K json           P: ping -> Q
    C: compile a plan -> C log cubin               B: bind it to the mapped memory -> M
    R u32: run on slot, synchronize -> D           N u32: an empty call -> D                 Z u32: by step -> J json
    T u32: run after an L2 flush between events -> D device ms, wall ms (float64)            W u32: the same, synchronized before
    any failure -> E json {"status", "reason", "log", "ours"}
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
import traceback
from typing import Any

from sandbox import cudriver

MAX_FRAME = 64 << 20
SPIN_S = 0.002
"""How long both ends poll for the next frame before they sleep: to wake a sleeping process takes longer than the rest of a round trip."""
HEAD_START = 12
"""Fills of the flush buffer before a timed call: while the card works on them, the host puts the whole call into the queue, so that
events bracket the card's work and not the host's (a call of torch.compile takes the host longer than one fill takes the card)."""


class Broken(RuntimeError):
    """The other side closed, sent an odd frame, or did not answer in time (`late`)."""

    def __init__(self, text: str, late: bool = False):
        super().__init__(text)
        self.late = late


def see_only(gpu: str) -> None:
    """Make the GPU with this UUID the only one of this process, which must not have touched CUDA yet and will not fork.

    A single GPU needs no variable: torch resolves UUIDs by NVML, which a confined process may not reach, and then counts no device.
    """
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    folder = "/proc/driver/nvidia/gpus"
    if not os.path.isdir(folder) or len(os.listdir(folder)) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def send(channel: socket.socket, message: bytes, descriptor: int | None = None) -> None:
    """One frame; raises Broken."""
    head = struct.pack("<I", len(message))
    try:
        if descriptor is None:
            channel.sendall(head + message)
        else:
            channel.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
            channel.sendall(message)
    except OSError as error:
        raise Broken(f"the channel is closed: {error}", late=isinstance(error, TimeoutError)) from None


def receive(channel: socket.socket, *, most: int = MAX_FRAME) -> tuple[bytes, int | None]:
    """One frame and the descriptor that came with it; raises Broken. The channel's time-out bounds each read."""
    spin(channel)
    try:
        head, ancillary, _, _ = channel.recvmsg(4, socket.CMSG_SPACE(4))
        if len(head) != 4:
            raise Broken("the channel is closed")
        length = struct.unpack("<I", head)[0]
        if length > most:
            raise Broken(f"a frame of {length} bytes")
        parts, missing = [], length
        while missing:
            part = channel.recv(min(missing, 1 << 20))
            if not part:
                raise Broken("the channel is closed")
            parts.append(part)
            missing -= len(part)
    except TimeoutError:
        raise Broken("no answer in time", late=True) from None
    except OSError as error:
        raise Broken(f"the channel is closed: {error}") from None
    found = [struct.unpack("<i", data[:4])[0] for level, kind, data in ancillary if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)]
    return b"".join(parts), found[0] if found else None


def spin(channel: socket.socket) -> None:
    """Return once something can be read, at the latest after SPIN_S."""
    poll, end = select.poll(), time.perf_counter() + SPIN_S
    try:
        poll.register(channel, select.POLLIN)
        while not poll.poll(0) and time.perf_counter() < end:
            pass
    except (OSError, ValueError) as error:
        raise Broken(f"the channel is closed: {error}") from None


class Failure(Exception):
    """Sent as an E frame. `ours` is believed only from trusted servers."""

    def __init__(self, status: str, reason: str, *, log: str = "", ours: bool = False):
        super().__init__(reason)
        self.fields = {"status": status, "reason": reason[:2000], "log": log[-6000:], "ours": ours}


def failure_of(error: BaseException, candidate_ran: bool) -> Failure:
    if isinstance(error, Failure):
        return error
    whole = f"{type(error).__name__}: {error}".strip()
    text = whole[:1000]
    if type(error).__name__ in ("CompileException", "CompilationError"):
        return Failure("compile_error", text.splitlines()[0][:500], log="".join(traceback.format_exception(error)[-12:]))
    if "Error building extension" in whole:  # torch.utils.cpp_extension, inside a candidate
        line = next((line for line in whole.splitlines() if "error:" in line), whole.splitlines()[0])
        return Failure("compile_error", line.strip()[:500], log=whole[-4000:])
    memory = (isinstance(error, cudriver.CudaError) and error.code == cudriver.OUT_OF_MEMORY) or "OutOfMemoryError" in type(error).__name__
    log = "".join(traceback.format_exception(error)[-12:])
    return Failure("out_of_memory" if memory or isinstance(error, MemoryError) else "runtime_error", text, log=log, ours=not candidate_ran)


class Server:
    """Maps memory, answers commands. Subclasses implement `run(slot)`, which enqueues the work on stream 0."""

    def __init__(self, channel: socket.socket):
        self.channel = channel
        self.layout: dict[str, Any] = {}
        self.base = self.size = 0
        self.flush = self.flush_bytes = 0
        self.events: cudriver.Events | None = None
        self.candidate_ran = False

    def serve(self) -> None:
        try:
            while True:
                message, descriptor = receive(self.channel)
                self.answer(message[:1], message[1:], descriptor)
        except Broken:
            return
        except BaseException as error:
            try:
                send(self.channel, b"E" + json.dumps(failure_of(error, self.candidate_ran).fields).encode())
            except Broken:
                return

    def answer(self, command: bytes, body: bytes, descriptor: int | None) -> None:
        if command == b"R":
            slot = struct.unpack("<I", body)[0]
            self.run(slot)
            self.deliver(slot)
            self.synchronize()
            send(self.channel, b"D")
        elif command in b"TW":
            send(self.channel, b"D" + struct.pack("<dd", *self.timed(struct.unpack("<I", body)[0], command == b"W")))
        elif command == b"P":
            send(self.channel, b"Q")
        elif command == b"N":
            cudriver.fill(self.flush, 0, 4)
            self.synchronize()
            send(self.channel, b"D")
        elif command == b"S":
            self.map(json.loads(body), descriptor)
            self.mapped()
            send(self.channel, b"M")
        else:
            self.other(command, body)

    def map(self, layout: dict, descriptor: int) -> None:
        if self.base:
            cudriver.synchronize()
            cudriver.unmap_shared(self.base, self.size)
        self.layout, self.size = layout, layout["size"]
        self.base = cudriver.map_shared(descriptor, self.size)
        os.close(descriptor)
        if self.flush_bytes != layout["flush_bytes"]:
            self.flush_bytes = layout["flush_bytes"]
            self.flush = cudriver.allocate(self.flush_bytes)
        self.events = self.events or cudriver.Events()

    def timed(self, slot: int, synchronized: bool) -> tuple[float, float]:
        for _ in range(1 if synchronized else HEAD_START):
            cudriver.fill(self.flush, 0, self.flush_bytes)
        if synchronized:
            cudriver.synchronize()
        start = time.perf_counter()
        self.events.start()
        self.run(slot)
        self.events.stop()
        self.synchronize()
        wall = 1e3 * (time.perf_counter() - start)
        device = self.events.elapsed_ms()
        self.deliver(slot)
        self.synchronize()
        return device, wall

    def synchronize(self) -> None:
        cudriver.synchronize()

    def mapped(self) -> None:
        """After new memory was mapped; no candidate code may run here."""

    def run(self, slot: int) -> None:
        raise NotImplementedError

    def deliver(self, slot: int) -> None:
        """Put the result of `run` into the slot's outputs, where it does not stand there already."""

    def other(self, command: bytes, body: bytes) -> None:
        raise Failure("runtime_error", f"got command {command!r}, wanted one of SBLPRNZTW", ours=True)


class _Memory:
    """__cuda_array_interface__ of raw bytes."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def tensor_at(address: int, shape: tuple[int, ...], dtype: str, stride: tuple[int, ...] | None = None):
    """A torch tensor over device memory that someone else keeps alive."""
    import torch

    kind = getattr(torch, dtype)
    count = 1
    for dim in shape:
        count *= dim
    if count == 0:
        return torch.empty(shape, dtype=kind, device="cuda")
    flat = torch.as_tensor(_Memory(address, count * kind.itemsize), device="cuda").view(kind)
    return flat.as_strided(shape, stride) if stride is not None else flat.view(shape)
