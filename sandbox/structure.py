"""How an output is put together: tensors and numbers in tuples, lists and dicts, as one text and a flat list of tensors.

Task and candidate are flattened by the same code; the texts must be equal, and then only tensors are compared.
"""

from __future__ import annotations

from typing import Any

MOST = 16
"""Leaves of an output, and levels of it."""


def flatten(value: Any, floating, device: str = "cpu") -> tuple[list, str]:
    """Leaves of an output in order, and its structure, e.g. "tuple(tensor, dict('aux': None, 'y': tensor))".

    A number becomes a tensor without dimensions on `device`: bool, int64, or the dtype `floating`. A named tuple is a tuple; the order of a dict's keys
    does not matter. Raises TypeError where something is no output.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return [value], "tensor"
    leaves: list = []
    kinds = {bool: torch.bool, int: torch.int64, float: floating}

    def inner(value: Any, levels: int) -> str:
        if isinstance(value, torch.Tensor):
            leaves.append(value)
            return "tensor"
        if value is None:
            return "None"
        if type(value) in kinds:
            try:
                leaves.append(torch.tensor(value, dtype=kinds[type(value)], device=device))
            except (OverflowError, RuntimeError, ValueError):
                raise TypeError(f"output: got the number {str(value)[:40]}, wanted one of 64 bits") from None
            return type(value).__name__
        if levels and isinstance(value, tuple | list):
            return f"{'tuple' if isinstance(value, tuple) else 'list'}({', '.join(inner(item, levels - 1) for item in value)})"
        if levels and isinstance(value, dict) and all(type(key) in (str, int) for key in value):
            return f"dict({', '.join(f'{key!r}: {inner(value[key], levels - 1)}' for key in sorted(value, key=repr))})"
        raise TypeError(
            f"output: got {type(value).__name__}, wanted tensors and numbers in tuples, lists and dicts of at most {MOST} levels"
        )

    text = inner(value, MOST)
    if len(leaves) > MOST:
        raise TypeError(f"output: got {len(leaves)} tensors, wanted at most {MOST}")
    return leaves, text
