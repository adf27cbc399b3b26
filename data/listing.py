"""A traced task as text: one line a value, in the order of execution, so that a small model need not parse Python."""

from __future__ import annotations

import ast
import functools
import math
from typing import Any

from data.trace import Graph, Node, trace

# Arguments that say nothing when they have these values (aten's defaults and what the shapes show already).
SILENT = {
    "alpha": (1,),
    "approximate": ("none",),
    "beta": (1,),
    "dtype": (None,),
    "half_to_float": (False,),
    "implicit": (False,),
    "input_scale": (1,),
    "max": (None,),
    "memory_format": (None,),
    "min": (None,),
    "scale": (1,),
    "threshold": (20,),
}


@functools.lru_cache(maxsize=4096)
def listing(source: str, mode: str = "eval") -> str:
    """What creates the parameters of a task's model, then its graph. Raises ValueError where the source cannot be traced."""
    graph = trace(source, mode)
    constants, init = constructor(source, {node.name.partition(".")[0] for node in graph.parameters})
    return "\n".join([*constants, *init, graph_lines(graph)])


def constructor(source: str, owners: set[str]) -> tuple[list[str], list[str]]:
    """What creates the attributes `owners` of Model: the module's constants that it needs, and `__init__` cut to those attributes.

    No lines where nothing is owned and the constructor takes no arguments.
    """
    body = ast.parse(source).body
    model = next((n for n in body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    init = next((n for n in (model.body if model else []) if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None or not (owners or len(init.args.args) > 1):
        return [], []
    kept = [n for n in init.body if owners.intersection(a.attr for a in ast.walk(n) if isinstance(a, ast.Attribute))]
    lines = [f"    def __init__({ast.unparse(init.args)}):", "        super().__init__()"]
    lines += ["        " + line for statement in kept for line in ast.unparse(statement).splitlines()]
    names = {n.id for statement in kept for n in ast.walk(statement) if isinstance(n, ast.Name)} - {a.arg for a in init.args.args}
    constants = [n for n in body if isinstance(n, ast.Assign) and names.intersection(t.id for t in n.targets if isinstance(t, ast.Name))]
    return [ast.unparse(n) for n in constants], lines


def graph_lines(graph: Graph) -> str:
    """Inputs and parameters with their shapes, then `vK = operator(operands, arguments)`, then what is returned.

    The last dimension of the largest input is written `n`, the dimensions before it `m`: a kernel gets them at run time.
    """
    lines, names = _named(graph)
    return "\n".join([*lines.values(), "return " + ", ".join(names[i] for i in graph.outputs)]) + "\n"


def operator_lines(graph: Graph) -> dict[int, str]:
    """The lines of `graph_lines` that compute something, by the index of their node."""
    return {index: line for index, line in _named(graph)[0].items() if graph.nodes[index].kind == "op"}


def _named(graph: Graph) -> tuple[dict[int, str], dict[int, str]]:
    """Lines and names of the nodes by index."""
    full = max((node.shape for node in graph.inputs), key=lambda s: (math.prod(s), len(s)), default=())
    names: dict[int, str] = {}
    lines: dict[int, str] = {}
    made = 0
    for node in graph.nodes:
        if node.kind == "op":
            if node.view and node.shape == full and _same_values(node, graph):
                names[node.index] = names[node.inputs[0]]
                continue
            made += 1
            names[node.index] = f"v{made}"
            operands = [names[i] for i in node.inputs]
            lines[node.index] = f"{names[node.index]} = {node.op}({', '.join(operands + _arguments(node, full))})"
        else:
            prefix = "" if node.kind == "input" else "self."
            names[node.index] = f"{prefix}{node.name or node.kind}"
            lines[node.index] = f"{names[node.index]}: {_shape(node.shape, full)}"
    return lines, names


def _same_values(node: Node, graph: Graph) -> bool:
    return node.op in ("expand", "view", "clone") and graph.nodes[node.inputs[0]].shape[:-1] == node.shape[:-1]


def _shape(shape: tuple[int, ...], full: tuple[int, ...]) -> str:
    known = {full: "m n", full[:-1] + (1,): "m 1", full[:-1]: "m", full[-1:]: "n"}
    return known.get(shape) or " ".join(map(str, shape)) or "scalar"


def _arguments(node: Node, full: tuple[int, ...]) -> list[str]:
    words = []
    for key, value in node.args.items():
        if any(value == silent and isinstance(value, bool) == isinstance(silent, bool) for silent in SILENT.get(key, ())):
            continue
        if key in ("dim", "normalized_shape") and value in (len(full) - 1, [len(full) - 1], [full[-1]] if full else None):
            continue
        if key == "keepdim":
            words += ["keepdim"] if value else []
            continue
        words.append(f"{key}={_value(value)}" if key not in ("other", "exponent", "negative_slope") else _value(value))
    return words


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
