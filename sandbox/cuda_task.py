"""A task on a GPU as the judge holds it: oracle, shared memory, baselines; and the server that runs its references."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from typing import Any

from data.records import SandboxError, Status, Task
from sandbox import cudriver
from sandbox.backends import Failed, Limits, TaskInvalid
from sandbox.cuda_memory import Slab
from sandbox.cuda_peer import Peer

SLOTS = 2
FIRST_BLOCK, NEXT_BLOCK, WALL_BLOCK = 24, 12, 10
"""Timed calls of a reference before the first candidate, between candidates, and by the host's clock."""
_NAMES = {"eager": "reference", "compile": "compile"}
"""Key of a baseline to the module's name in the server."""


@dataclasses.dataclass(kw_only=True)
class Prepared:
    """A task on this GPU. Baselines are blocks of samples in milliseconds, taken before and between candidates."""

    task: Task
    reference: Any
    limits: Limits
    precision: str
    track: str
    slab: Slab
    device: dict[str, list[list[float]]] = dataclasses.field(default_factory=dict)
    """Event times after an L2 flush."""
    wall: dict[str, float] = dataclasses.field(default_factory=dict)
    """Median host times of one synchronized call."""
    closed: dict[str, list[list[float]]] = dataclasses.field(default_factory=dict)
    """Tier 1: the judge's clock around copies and call."""
    closed_at: float = float("-inf")
    """When the last of them was taken (monotonic)."""
    empty_ms: float = 0.0
    """Tier 1: the least time of such a call that does nothing."""
    round_trip_ms: float = 0.0
    """Tier 1: the same without its copies."""
    floor_ms: float | None = None
    compile_refused: str | None = None
    """Why torch.compile gave no baseline."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    replica: Any = None
    """An instance of the reference that answers what the candidate is asked: its buffers are what the candidate's should be."""

    def __post_init__(self) -> None:
        from sandbox.server import changing_buffers

        self.changing = changing_buffers(self.reference)

    def start_buffers(self) -> None:
        """A candidate's first call follows: a replica where buffers are compared."""
        self.reset_buffers()
        self.replica = self.reference._instance(self.reference.state) if self.changing else None

    def end_buffers(self) -> None:
        """The candidate is gone: the next one finds the buffers as this one did."""
        self.reset_buffers()
        self.replica = None

    def reset_buffers(self) -> None:
        """What servers show of the buffers that the reference changes, back to the start."""
        import torch

        for name in self.changing:
            self.slab.parameters[name].copy_(self.reference.state[name])
        torch.cuda.synchronize()

    @property
    def layout(self) -> dict:
        return self.slab.layout(structure=self.reference.structure, precision=self.precision) | {"changing": self.changing}

    @property
    def input_bytes(self) -> int:
        return sum(p.bytes for name, p in self.slab.places[0].items() if name[0] == "x")

    @property
    def output_bytes(self) -> int:
        return sum(p.bytes for name, p in self.slab.places[0].items() if name[0] == "y")


class References:
    """The one long-lived server for references of a judge process, trusted; it holds one task at a time."""

    def __init__(self, facts: dict[str, Any], environment: dict[str, Any]):
        self.facts, self.environment = facts, environment
        self.server: Peer | None = None
        self.current: Prepared | None = None

    def peer(self, prepared: Prepared) -> Peer:
        """The server with this task's memory mapped. Raises SandboxError."""
        if self.server is None or self.server.closed:
            self.current = None
            self.server = Peer("sandbox.cuda_module:reference_server", {"gpu": self.facts["uuid"]}, confinement=None, trusted=True)
        if self.current is not prepared:
            self.current = None
            try:
                self.server.share(prepared.slab, prepared.layout, seconds=60.0)
            except SandboxError:
                self.drop()
                raise
            self.current = prepared
        return self.server

    def holds(self, prepared: Prepared) -> bool:
        return self.server is not None and self.current is prepared

    def drop(self) -> None:
        if self.server is not None:
            self.server.close()
        self.server = self.current = None

    def forget(self, prepared: Prepared) -> None:
        if self.current is prepared:
            self.current = None

    def measure(self, prepared: Prepared) -> None:
        """First blocks of device and wall times of eager and compiled reference. Raises TaskInvalid where the reference fails."""
        start = time.perf_counter()
        for key in _NAMES:
            recorded = self._recorded(prepared) if key == "compile" else None
            if recorded is not None:
                prepared.device[key] = [recorded]
                prepared.wall[key] = prepared.task.baselines.environment.get("wall_ms", {}).get(key) or statistics.median(recorded)
                continue
            if key == "compile" and not prepared.limits.compile_s:
                continue
            peer = self.peer(prepared)
            # The task's own code runs: what fails now is a fact about the task
            peer.ran = True
            try:
                self.load(prepared, key)
                self._warm(prepared, peer, _longest(prepared, key))
                prepared.device[key] = [self._block(peer, FIRST_BLOCK)]
                prepared.wall[key] = statistics.median(peer.timed(i % SLOTS, seconds=60.0, wall=True)[1] for i in range(WALL_BLOCK))
                peer.ran = False
            except Failed as error:
                self.drop()
                if key == "eager":
                    raise TaskInvalid(f"the reference fails: {error}") from None
                # torch.compile alone fails: then there is no such baseline
                prepared.device.pop(key, None)
                prepared.compile_refused = f"{error}\n{error.log}".strip()[-2000:]
        prepared.seconds["baselines"] = time.perf_counter() - start
        floor = 1e3 * max(0, prepared.input_bytes + prepared.output_bytes - self.facts["l2_bytes"]) / cudriver.peak_bandwidth(self.facts)
        # A reference below it shows that not every byte is needed: then there is no floor
        fastest = min(statistics.median(blocks[0]) for blocks in prepared.device.values())
        prepared.floor_ms = floor if 0 < floor <= fastest else None

    def measure_again(self, prepared: Prepared) -> None:
        """Another block once a candidate is gone, so that drift widens the interval; only the last two are kept."""
        # Compiling anew for a task that another one displaced, or that was read from its record, would cost seconds
        compiled = self.holds(prepared) and self._recorded(prepared) is None
        for key in _NAMES:
            if key in prepared.device and (key == "eager" or compiled):
                peer = self.peer(prepared)
                self.load(prepared, key)
                peer.timed(0, seconds=60.0)
                prepared.device[key] = [*prepared.device[key][-1:], self._block(peer, NEXT_BLOCK)]

    def load(self, prepared: Prepared, key: str) -> None:
        load(self.peer(prepared), prepared, _NAMES[key], seconds=_longest(prepared, key))

    def _recorded(self, prepared: Prepared) -> list[float] | None:
        """Compile times from the task's record, scaled by the drift of eager; None where the machine differs."""
        known = prepared.task.baselines
        wanted = ("gpu", "driver", "torch", "protocol")
        if known is None or not known.compile_ms or any(known.environment.get(k) != self.environment[k] for k in wanted):
            return None
        drift = statistics.median(prepared.device["eager"][0]) / known.eager_ms
        return [known.compile_ms * drift * f for f in (0.995, 1.0, 1.005)] if 0.9 < drift < 1.1 else None

    def _warm(self, prepared: Prepared, peer: Peer, seconds: float) -> None:
        """Inputs in every slot, warm calls, and the reference's own output against the oracle's."""
        import torch

        from sandbox.compare import difference

        for slot in range(SLOTS):
            case = prepared.reference.draw("own")
            prepared.slab.write(slot, case.inputs)
            prepared.slab.poison(slot, 0xFF)
            torch.cuda.synchronize()
            peer.run(slot, seconds=seconds)
            found = difference(prepared.slab.capture(slot), case)
            if found is not None:
                raise Failed(Status.INCORRECT, f"it differs from itself in another process: {found}")
        for i in range(3):
            peer.timed(i % SLOTS, seconds=60.0)

    def _block(self, peer: Peer, count: int) -> list[float]:
        samples, start = [], time.perf_counter()
        while len(samples) < count and (len(samples) < 5 or time.perf_counter() - start < 2.0):
            samples.append(peer.timed(len(samples) % SLOTS, seconds=60.0)[0])
        return samples


def _longest(prepared: Prepared, key: str) -> float:
    return prepared.limits.compile_s if key == "compile" else 300.0


def load(peer: Peer, prepared: Prepared, name: str, *, seconds: float) -> dict:
    """Load the module `reference`, `compile` or `candidate` into a server; returns what it says of the weights."""
    o = {"name": name, "source": prepared.task.source, "mode": prepared.task.mode, "tf32": prepared.track == "tf32"}
    prepared.reset_buffers()
    answer = peer.ask(b"L" + json.dumps(o).encode(), seconds=seconds, wanted=b"K", late=Status.COMPILE_TIMEOUT)
    try:
        return dict(json.loads(answer))
    except (ValueError, TypeError):
        raise Failed(Status.RUNTIME_ERROR, "an odd answer") from None
