"""Tier 1 on the GPU: candidates with host code in a confined child, timed by the judge's clock in a closed loop.

A call: poison the outputs, flush the L2, t0, copy the inputs into the shared slot in random pieces, ring, await the ring,
copy the outputs out, t1. Its time is t1 - t0 less the least such time of a server that only rings back. References are measured
the same way while no candidate lives. Where candidate or reference is not far above an empty round trip there is no speed-up.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import struct
import time
from typing import Any

from data.records import Candidate
from sandbox.backends import Found
from sandbox.cuda_calls import POISONS, calls, check_floor, check_surroundings, compare, restore, speed_of_light, undecided
from sandbox.cuda_peer import Peer
from sandbox.cuda_task import SLOTS, Prepared, References, load

RESOLUTION = 20
"""Credit only above this many empty round trips."""
FIRST_BLOCK, NEXT_BLOCK, EMPTY_BLOCK = 48, 16, 40
"""Calls of a reference before the first candidate and around later ones, and empty ones."""
RECENT_S = 2.0
"""Blocks of so long ago, no other candidate since, stand before this one too."""
_PIECES = 8


class ClosedLoop:
    """Judges modules; holds the buffer that flushes the L2 [2 L2 sizes, uint8, cuda]."""

    def __init__(self, facts: dict[str, Any], references: References):
        import torch

        self.facts, self.references = facts, references
        self.flush = torch.empty(2 * facts["l2_bytes"], dtype=torch.uint8, device="cuda")

    def judge(self, prepared: Prepared, candidate: Candidate, library: tuple[bytes, dict] | None, confinement: Any) -> Found:
        """One candidate with host code. Raises Failed."""
        if time.monotonic() - prepared.closed_at > RECENT_S:
            self._baselines(prepared, NEXT_BLOCK if prepared.closed else FIRST_BLOCK)
        payload = {"files": candidate.files, "library": library, "gpu": self.facts["uuid"]}
        payload["loader"] = os.environ.get("LD_LIBRARY_PATH")
        peer = Peer("sandbox.cuda_module:candidate_server", payload, confinement=confinement, trusted=False)
        flags, samples = ["own_share_static"], []
        try:
            with contextlib.closing(peer):
                peer.share(prepared.slab, prepared.layout)
                # Until here no candidate code has run; from here on every failure is its own
                peer.ran = True
                loaded = load(peer, prepared, "candidate", seconds=prepared.limits.build_s)
                flags += ["weights_by_shape"] if loaded.get("weights") == "shape" else []
                for timing, took in calls(prepared, lambda *a: self._call(prepared, peer, *a), lambda took: took):
                    samples += [took] if timing != "check" else []
            check_surroundings(prepared)
        except BaseException:
            restore(prepared)
            raise
        self._baselines(prepared, NEXT_BLOCK)
        return self._credit(prepared, samples, flags)

    def _call(self, prepared: Prepared, peer: Peer, case: Any, timing: str, number: int) -> float:
        # Compilers and autotuners run in the first calls
        seconds = prepared.limits.build_s if timing == "warm" else prepared.limits.call_s
        slot = number % SLOTS
        took, got = self._clocked(prepared, peer, case, slot, b"R", seconds)
        compare(prepared, case, slot, got)
        return took

    def _clocked(self, prepared: Prepared, peer: Peer, case: Any, slot: int, command: bytes, seconds: float) -> tuple[float, list]:
        """(ms, private copies of the outputs) of copy-in, ring, run, ring, copy-out by this process's clock."""
        import torch

        prepared.slab.poison(slot, random.SystemRandom().choice(POISONS))
        self.flush.zero_()
        pieces = prepared.slab.pieces(slot, case.inputs, _PIECES)
        torch.cuda.synchronize()
        # Awake and polling from here on; an answer that is no answer fails it as any other
        peer.ask(b"P", seconds=seconds, wanted=b"Q")
        start = time.perf_counter()
        for target, source in pieces:
            target.copy_(source)
        torch.cuda.synchronize()
        peer.ask(command + struct.pack("<I", slot), seconds=seconds, wanted=b"D")
        got = prepared.slab.capture(slot)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start), got

    def _baselines(self, prepared: Prepared, count: int) -> None:
        """Empty round trips and references by the same protocol, no candidate alive."""
        compiled = not prepared.closed or self.references.holds(prepared)
        peer = self.references.peer(prepared)
        case = prepared.reference.draw("own")
        empty, bare = [], []
        for i in range(EMPTY_BLOCK):
            empty.append(self._clocked(prepared, peer, case, i % SLOTS, b"N", 60.0)[0])
            start = time.perf_counter()
            peer.ask(b"N" + struct.pack("<I", 0), seconds=60.0, wanted=b"D")
            bare.append(1e3 * (time.perf_counter() - start))
        prepared.empty_ms = min([*empty[5:], *([prepared.empty_ms] if prepared.empty_ms else [])])
        prepared.round_trip_ms = statistics.median(bare[5:])
        for key in ("eager", "compile"):
            # Compiling anew for a task that another one displaced would cost seconds
            if key not in prepared.device or (key == "compile" and not compiled):
                continue
            self.references.load(prepared, key)
            samples, start = [], time.perf_counter()
            while len(samples) < count + 3 and (len(samples) < 8 or time.perf_counter() - start < 2.0):
                samples.append(self._clocked(prepared, peer, case, len(samples) % SLOTS, b"R", 60.0)[0])
            prepared.closed[key] = [*prepared.closed.get(key, [])[-1:], samples[3:]]
        prepared.closed_at = time.monotonic()

    def _credit(self, prepared: Prepared, samples: list[float], flags: list[str]) -> Found:
        """Times less the empty round trip; a speed-up only where all are far above it."""
        from sandbox.timing import interval

        def net(block: list[float]) -> list[float]:
            return [max(1e-3, s - prepared.empty_ms) for s in block]

        own, blocks = net(samples), {key: [net(block) for block in found] for key, found in prepared.closed.items()}
        medians = {"candidate": statistics.median(own)}
        medians |= {key: statistics.median([s for block in found for s in block]) for key, found in blocks.items()}
        resolved = min(medians.values()) > RESOLUTION * prepared.round_trip_ms
        speedup = {key: interval(found, own) for key, found in blocks.items()} if resolved else None
        if resolved:
            check_floor(prepared, medians["candidate"])
        flags += [] if resolved else ["below_resolution"]
        flags += ["undecided"] if speedup and undecided(speedup) else []
        light = speed_of_light(prepared, self.facts, medians["candidate"]) if resolved else None
        log = f"empty round trip {prepared.empty_ms:.4f} ms with copies, {prepared.round_trip_ms:.4f} ms without"
        return Found(times_ms=medians, speedup=speedup, flags=tuple(flags), speed_of_light=light, log=log)
