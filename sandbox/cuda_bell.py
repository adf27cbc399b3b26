"""The doorbell between judge and server in tier 1: a page of shared memory that both ends poll, since two socket messages take longer
than a short kernel.

It carries no data and no trust: the judge believes only the bytes in its own GPU memory once the bell has rung back, and whoever rings
too early is compared too early. Failures and everything else still travel on the socket (sandbox/cuda_worker.py).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import time

SIZE = mmap.PAGESIZE
AWAKE_S = 0.005
"""How long either end polls before it sleeps: who only polls is sooner or later put aside on a crowded machine."""
BURST = 1024
"""Looks at the page between two looks at the socket and the clock."""
_ASKED, _ANSWERED, _ASLEEP, _COMMAND, _SLOT = range(5)
"""Words of the page, int64: number of the call, number of the last one done, server sleeps, first byte of the command, slot."""


def make() -> int:
    """Descriptor of a fresh page whose size nobody can change: else its other holder could take the judge down with it."""
    descriptor = os.memfd_create("bell", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


class _Page:
    def __init__(self, descriptor: int):
        self.page = mmap.mmap(descriptor, SIZE)
        self.words = memoryview(self.page).cast("q")
        self.number = 0

    def close(self) -> None:
        self.words.release()
        self.page.close()


class Button(_Page):
    """The judge's end."""

    def press(self, command: bytes, slot: int) -> None:
        self.number += 1
        words = self.words
        words[_COMMAND], words[_SLOT] = command[0], slot
        words[_ASKED] = self.number

    def done(self) -> bool:
        """Looks at the page BURST times, or until the call is done."""
        words, number = self.words, self.number
        if any(words[_ANSWERED] == number for _ in range(BURST)):
            return True
        os.sched_yield()  # the server may wait for this very core
        return False

    @property
    def asleep(self) -> bool:
        return bool(self.words[_ASLEEP])


class Bell(_Page):
    """The server's end."""

    def wait(self, channel: socket.socket) -> tuple[bytes, int] | None:
        """(command, slot) of the next call; None when a frame can be read from `channel` instead, or its other end is gone."""
        words, poll, end = self.words, select.poll(), time.perf_counter() + AWAKE_S
        poll.register(channel, select.POLLIN)
        while True:
            for _ in range(BURST):
                if words[_ASKED] != self.number:
                    self.number = words[_ASKED]
                    return bytes([words[_COMMAND] & 0xFF]), words[_SLOT]
            os.sched_yield()
            if poll.poll(0):
                return None
            if time.perf_counter() > end:
                words[_ASLEEP] = 1
                # A call that came in between is seen here, or the judge sees that this end sleeps and sends a frame
                if words[_ASKED] == self.number:
                    poll.poll()
                words[_ASLEEP] = 0

    def answer(self) -> None:
        self.words[_ANSWERED] = self.number
