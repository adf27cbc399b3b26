"""The judge's end of a server on the GPU (sandbox/cuda_worker.py), and whose fault its failures are."""

from __future__ import annotations

import glob
import json
import os
import socket
import struct
from typing import Any

from data.records import SandboxError, Status
from sandbox.backends import Failed
from sandbox.cuda_memory import Slab
from sandbox.cuda_worker import Broken, receive, send

_TOLD = (Status.COMPILE_ERROR, Status.FORMAT_ERROR, Status.INCORRECT, Status.OUT_OF_MEMORY, Status.RUNTIME_ERROR)
"""Statuses that a server may name; anything else it says is a runtime_error."""
LEVELS = ("uid, namespaces, new root, seccomp", "uid, namespaces, read-only root, seccomp", "uid, namespaces, read-only root")
"""What can stand around a candidate on a GPU, strongest first."""


class Peer:
    """The judge's end of one server. Every failure becomes Failed, or SandboxError where candidate code cannot have caused it."""

    def __init__(self, role: str, payload: dict, *, confinement: Any, trusted: bool):
        from sandbox import slot

        mine, theirs = socket.socketpair()
        with theirs:
            self.child = slot.spawn(role, payload, fds=(theirs.fileno(),), confinement=confinement)
        self.socket, self.trusted, self.ran = mine, trusted, False
        """`ran`: candidate code may have run, so silence and death are its own."""

    def ask(self, message: bytes, *, seconds: float, wanted: bytes, descriptor: int | None = None, late: Status = Status.TIMEOUT) -> bytes:
        """Send and await the answer whose first byte is `wanted`; returns the rest. Raises Failed or SandboxError."""
        self.socket.settimeout(seconds)
        try:
            send(self.socket, message, descriptor)
            answer, _ = receive(self.socket, most=64 << 20 if self.trusted else 1 << 16)
        except Broken as error:
            log = self.close()
            if not self.ran:
                raise SandboxError(f"{message[:1].decode()}: {error}; {log[-500:]}") from None
            if error.late:
                raise Failed(late, f"no answer within {seconds:g} s", log=log) from None
            raise Failed(Status.RUNTIME_ERROR, f"the process died: {error}", log=log) from None
        if answer[:1] == b"E":
            raise self._told(answer[1:])
        if answer[:1] != wanted:
            self.close()
            text = f"got answer {answer[:20]!r}, wanted {wanted!r}"
            raise Failed(Status.RUNTIME_ERROR, text) if self.ran else SandboxError(text)
        return answer[1:]

    def _told(self, body: bytes) -> Exception:
        """What an E frame says; an untrusted server that has run candidate code cannot make it our failure."""
        log = self.close()
        try:
            told = json.loads(body)
            status, reason = str(told["status"]), str(told["reason"])[:2000]
            log = (str(told["log"])[:6000] + "\n" + log).strip()
            ours = bool(told["ours"])
        except (ValueError, KeyError, TypeError):
            return Failed(Status.RUNTIME_ERROR, "an odd message", log=log)
        if ours and (self.trusted or not self.ran):
            return SandboxError(f"{reason}\n{log}")
        return Failed(Status(status) if status in _TOLD else Status.RUNTIME_ERROR, reason or "an error without text", log=log)

    def share(self, slab: Slab, layout: dict, *, seconds: float = 30.0) -> None:
        self.ask(b"S" + json.dumps(layout).encode(), seconds=seconds, wanted=b"M", descriptor=slab.descriptor)

    def run(self, slot: int, *, seconds: float) -> None:
        self.ask(b"R" + struct.pack("<I", slot), seconds=seconds, wanted=b"D")

    def timed(self, slot: int, *, seconds: float, wall: bool = False) -> tuple[float, float]:
        """(device ms, wall ms), only from trusted servers."""
        return struct.unpack("<dd", self.ask((b"W" if wall else b"T") + struct.pack("<I", slot), seconds=seconds, wanted=b"D"))

    @property
    def closed(self) -> bool:
        return self.socket.fileno() < 0

    def close(self) -> str:
        """Kill it and wait until it is gone; returns what it printed. Safe to call twice."""
        self.socket.close()
        return (self.child.close() or {}).get("log", "")


def confinement(level: int, index: int, facts: dict[str, Any], *, processes: int = 256, cpu_s: int = 300) -> Any:
    """Confinement of a candidate on a GPU at one of LEVELS: no bound on address space (CUDA reserves far more than there is)."""
    from sandbox.confine import Confinement

    others = [p for p in glob.glob("/dev/nvidia[0-9]*") if p != facts.get("node")] if facts.get("node") else []
    return Confinement(
        index=index,
        memory_bytes=1 << 60,
        processes=processes,
        cpu_s=cpu_s,
        file_bytes=1 << 30,
        may_exec=True,
        readable=tuple(p for p in ("/sys", "/usr/local/nvidia", "/run/nvidia-persistenced") if os.path.exists(p)),
        devices=tuple(sorted(set(glob.glob("/dev/nvidia*")) - set(others))),
        keep_root=level > 0,
        seccomp=level < 2,
    )


def strongest(facts: dict[str, Any], index: int, slab: Slab) -> tuple[int, list[str]]:
    """The first of LEVELS under which a known-good server comes up, maps memory and runs an empty kernel; and why others failed.

    Raises SandboxError when none works.
    """
    reasons = []
    for level in range(len(LEVELS)):
        peer = None
        try:
            payload = {"files": {}, "library": None, "gpu": facts["uuid"]}
            peer = Peer("sandbox.cuda_module:candidate_server", payload, confinement=confinement(level, index, facts), trusted=False)
            peer.share(slab, slab.layout(structure="tensor", precision="fp32"))
            peer.ask(b"N" + struct.pack("<I", 0), seconds=20.0, wanted=b"D")
            return level, reasons
        except SandboxError as error:
            reasons.append(f"{LEVELS[level]}: {str(error)[:600]}")
        finally:
            if peer is not None:
                peer.close()
    raise SandboxError("no confinement in which CUDA works: " + "; ".join(reasons))
