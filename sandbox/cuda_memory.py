"""Memory that the judge owns on a GPU and lends to one server: inputs, outputs and parameters with guard bands between them."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import Any

from sandbox import cudriver
from sandbox.cuda_worker import tensor_at

ALIGN = 512
GUARD = 4096
GUARD_BYTE = 0xA5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor lies: bytes from the start, shape, dtype as torch names it without `torch.`."""

    offset: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    stride: tuple[int, ...] | None = None


def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Slab:
    """One shared allocation. `slots` maps x0.., y0.. to tensors per slot, `parameters` state_dict names to tensors.

    inputs: tensors or plain values in forward's order; outputs: specs with shape and dtype; state: name to tensor [any shape, cuda].
    """

    def __init__(self, *, inputs: list, outputs: list, state: dict[str, Any], slots: int, flush_bytes: int):
        import torch

        self.at = GUARD
        self.guards: list[tuple[int, int]] = [(0, GUARD)]
        is_tensor = [hasattr(v, "shape") and hasattr(v, "dtype") for v in inputs]
        self.scalars = {f"x{i}": v for i, v in enumerate(inputs) if not is_tensor[i]}
        self.arguments = [f"x{i}" for i in range(len(inputs))]
        self.parameter_places = {name: self._place(t) for name, t in state.items()}
        self.places = []
        for _ in range(slots):
            slot = {f"x{i}": self._place(v) for i, v in enumerate(inputs) if is_tensor[i]}
            self.places.append(slot | {f"y{i}": self._place(v) for i, v in enumerate(outputs)})
        self.flush_bytes = flush_bytes
        self.base, self.size, self.descriptor = cudriver.allocate_shared(self.at)
        self.bytes = tensor_at(self.base, (self.at,), "uint8")
        self.parameters = {name: self._tensor(p) for name, p in self.parameter_places.items()}
        self.slots = [{name: self._tensor(p) for name, p in places.items()} for places in self.places]
        for name, tensor in self.parameters.items():
            tensor.copy_(state[name])
        for start, size in self.guards:
            self.bytes[start : start + size].fill_(GUARD_BYTE)
        self._expected_guard = torch.full((2 * GUARD,), GUARD_BYTE, dtype=torch.uint8, device="cuda")

    def _place(self, spec: Any) -> Place:
        shape, dtype = tuple(int(d) for d in spec.shape), dtype_name(spec.dtype)
        import torch

        count = 1
        for dim in shape:
            count *= dim
        size = count * getattr(torch, dtype).itemsize
        stride = getattr(spec, "stride", None)
        stride = tuple(stride() if callable(stride) else stride) if stride is not None else None
        place = Place(offset=self.at, shape=shape, dtype=dtype, bytes=size, stride=_dense(shape, stride))
        # The guard starts at the last byte of the data, so that one element too many is seen
        end = -(-(self.at + size + GUARD) // ALIGN) * ALIGN
        self.guards.append((self.at + size, end - self.at - size))
        self.at = end
        return place

    def _tensor(self, place: Place):
        return tensor_at(self.base + place.offset, place.shape, place.dtype, place.stride)

    def layout(self, *, structure: str, precision: str) -> dict[str, Any]:
        """What a server is told."""
        return {
            "size": self.size, "flush_bytes": self.flush_bytes, "scalars": self.scalars, "arguments": self.arguments,
            "structure": structure, "precision": precision, "parameters": {n: dataclasses.asdict(p) for n, p in self.parameter_places.items()},
            "slots": [{n: dataclasses.asdict(p) for n, p in slot.items()} for slot in self.places],
        }  # fmt: skip

    def write(self, slot: int, values: list) -> None:
        """Copy a case's inputs into a slot."""
        for target, source in self.pieces(slot, values, 1):
            target.copy_(source)

    def pieces(self, slot: int, values: list, count: int) -> list[tuple[Any, Any]]:
        """(target in the slot, source) pairs that make up a case's inputs, each input in `count` parts where it has as many rows, in random order."""
        pairs = []
        for name, value in zip(self.arguments, values, strict=True):
            target = self.slots[slot].get(name)
            if target is None:
                continue
            parts = count if target.ndim and target.shape[0] >= count else 1
            pairs += zip(target.chunk(parts), value.chunk(parts), strict=True) if parts > 1 else [(target, value)]
        random.SystemRandom().shuffle(pairs)
        return pairs

    def poison(self, slot: int, byte: int) -> None:
        """Outputs of a slot to a byte; 0xFF is NaN for every float dtype."""
        for name, place in self.places[slot].items():
            if name[0] == "y":
                self.bytes[place.offset : place.offset + place.bytes].fill_(byte)

    def capture(self, slot: int) -> list:
        """Private copies of a slot's outputs."""
        return [self.slots[slot][f"y{i}"].clone() for i in range(sum(n[0] == "y" for n in self.slots[slot]))]

    def changed(self, slot: int, values: list) -> str | None:
        """Name of an input that no longer holds what was written, compared as bytes."""
        import torch

        for name, value in zip(self.arguments, values, strict=True):
            if name not in self.slots[slot]:
                continue
            now, then = as_bytes(self.slots[slot][name]), as_bytes(value)
            if all(v.numel() % 8 == 0 and v.storage_offset() % 8 == 0 for v in (now, then)):
                now, then = now.view(torch.int64), then.view(torch.int64)  # eight times fewer elements to compare
            if not torch.equal(now, then):
                return name
        return None

    def damaged(self, state: dict[str, Any]) -> str | None:
        """What was written beside the outputs: a guard band or a parameter."""
        import torch

        for start, size in self.guards:
            if not torch.equal(self.bytes[start : start + size], self._expected_guard[:size]):
                return "memory beside its outputs"
        for name, tensor in self.parameters.items():
            if not torch.equal(as_bytes(tensor), as_bytes(state[name])):
                return f"parameter {name}"
        return None

    def close(self) -> None:
        if self.base:
            import torch

            torch.cuda.synchronize()
            os.close(self.descriptor)
            cudriver.unmap_shared(self.base, self.size)
            self.base = 0


def as_bytes(tensor):
    """A dense tensor's contents as uint8, NaN payloads and all; logical order."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _dense(shape: tuple[int, ...], stride: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The stride where it is a permutation of a dense layout other than the contiguous one; else None."""
    if stride is None or 0 in shape:
        return None
    expected, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda d: (stride[d], d), reverse=False):
        expected[dim] = step
        step *= shape[dim]
    contiguous, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        contiguous[dim] = step
        step *= shape[dim]
    if list(stride) == contiguous or any(e != s for e, s, n in zip(expected, stride, shape, strict=True) if n > 1):
        return None
    return tuple(stride)
