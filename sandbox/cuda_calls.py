"""What both tiers on the GPU do around a candidate's calls: their number and order, the comparison, the floor."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from data.records import Status
from sandbox import cudriver
from sandbox.backends import Failed
from sandbox.cuda_memory import GUARD_BYTE
from sandbox.cuda_task import Prepared

POISONS = (0xFF, 0x7F, 0xC3, 0x3B)
FAST_MS, LIGHT_BYTES, LEAST = 10.0, 128 << 20, 12
"""Where a call takes longer, or a question with its answer is larger, fewer than `limits.calls` are timed by the device, at least LEAST: a
question of a gigabyte takes ten milliseconds to draw and to answer in fp64."""


def calls(prepared: Prepared, call: Callable[[Any, str, int], Any], wall_of: Callable[[Any], float]) -> Iterator[tuple[str, Any]]:
    """Yields (timing, what call(case, timing, number) gave), timing being check, device or wall.

    Two own calls come first, whose cost in ms decides how many follow; the rest comes in secret order. Raises Failed.
    """
    prepared.start_buffers()
    start, limits, costs = time.perf_counter(), prepared.limits, []
    cases = {kind: prepared.reference.cases(kind) for kind in prepared.reference.kinds}
    for number in range(2):
        costs.append(wall_of(call(next(cases["own"]), "warm", number)))
    share = min(1.0, FAST_MS / costs[1], LIGHT_BYTES / (prepared.input_bytes + prepared.output_bytes))
    count = max(LEAST, int(limits.calls * share))
    rest = [("own", "device")] * count + [("own", "wall")] * max(5, count // 6)
    rest += [(kind, "check") for kind in prepared.reference.kinds if kind != "own"]
    random.SystemRandom().shuffle(rest)
    for number, (kind, timing) in enumerate(rest, start=2):
        if time.perf_counter() - start > limits.total_s:
            raise Failed(Status.TIMEOUT, f"{number} calls took more than {limits.total_s:g} s")
        yield timing, call(next(cases[kind]), timing, number)


def compare(prepared: Prepared, case: Any, slot: int, got: list) -> None:
    """Outputs against the case; inputs unchanged, or as the reference leaves them; buffers that it changes. Call it after every call of a candidate.

    Raises Failed(INCORRECT), with rule stress (other distributions than the task's), inputs_changed, inputs_left or buffers.
    """
    from sandbox.compare import difference, inputs_left

    found = difference(got, case)
    if found is not None:
        own = case.kind == "own"
        raise Failed(Status.INCORRECT, found if own else f"{case.kind} inputs: {found}", rule=None if own else "stress")
    slab = prepared.slab
    if case.after is None:
        # Bit for bit, NaN payloads and signs of zeros too
        changed = slab.changed(slot, case.inputs)
        if changed is not None:
            raise Failed(Status.INCORRECT, f"input {changed} was changed", rule="inputs_changed")
    else:
        places = slab.slots[slot]
        wrong = inputs_left([places.get(name, value) for name, value in zip(slab.arguments, case.inputs, strict=True)], case)
        if wrong is not None:
            raise Failed(Status.INCORRECT, f"input {slab.arguments[wrong[0]]}{wrong[1]}", rule=wrong[2])
    _compare_buffers(prepared, case)


def _compare_buffers(prepared: Prepared, case: Any) -> None:
    """The buffers that the reference changes are what it leaves after the same calls. Raises Failed(INCORRECT, rule buffers)."""
    from sandbox.compare import effect, wrong

    if prepared.replica is None:
        return
    prepared.reference._forward(prepared.replica, case.inputs)
    state = prepared.replica.state_dict()
    for name in prepared.changing:
        problem = wrong(prepared.slab.parameters[name], state[name], effect(state[name].dtype))
        if problem:
            raise Failed(Status.INCORRECT, f"buffer {name} after the call{problem}", rule="buffers")


def check_surroundings(prepared: Prepared) -> None:
    """Guard bands and parameters as they were, but for buffers that the reference changes too; puts them right again and raises
    Failed(INCORRECT) otherwise."""
    slab, state = prepared.slab, prepared.reference.state
    damaged = slab.damaged(state | {name: slab.parameters[name] for name in prepared.changing})
    prepared.end_buffers()
    if damaged is None:
        return
    restore(prepared)
    raise Failed(Status.INCORRECT, f"wrote to {damaged}")


def restore(prepared: Prepared) -> None:
    """Parameters and guard bands as at the start: the next candidate must not find the last one's damage."""
    slab = prepared.slab
    prepared.end_buffers()
    for name, tensor in slab.parameters.items():
        tensor.copy_(prepared.reference.state[name])
    for start, size in slab.guards:
        slab.bytes[start : start + size].fill_(GUARD_BYTE)


def check_floor(prepared: Prepared, ms: float) -> None:
    """Raises Failed(REJECTED, rule beyond_floor) for less time than the bytes of inputs and outputs take at peak bandwidth."""
    if prepared.floor_ms is not None and ms < prepared.floor_ms:
        reason = f"{ms:.4f} ms is less than {prepared.floor_ms:.4f} ms, what its bytes take at peak bandwidth"
        raise Failed(Status.REJECTED, reason, rule="beyond_floor", flags=("beyond_floor",))


def speed_of_light(prepared: Prepared, facts: dict, ms: float) -> float:
    """Share of the peak bandwidth that inputs and outputs alone would make of `ms`."""
    return 1e3 * (prepared.input_bytes + prepared.output_bytes) / cudriver.peak_bandwidth(facts) / ms


def undecided(speedup: dict[str, tuple[float, float, float]]) -> bool:
    """The interval against compile (eager without it) straddles the 5 % milestone."""
    low, _, high = speedup.get("compile") or speedup["eager"]
    return low <= 1 / 0.95 < high
