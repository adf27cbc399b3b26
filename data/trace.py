"""The aten operators of a task, seen on the meta device: shapes without storage, names that no spelling can change."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

from data.records import Record

# Same mathematics under a second aten name: (canonical name, {old argument: new argument}).
SYNONYMS = {
    "hardtanh": ("clamp", {"min_val": "min", "max_val": "max"}),
    "clamp_min": ("clamp", {}),
    "clamp_max": ("clamp", {}),
    "native_layer_norm": ("layer_norm", {}),
    "linalg_vector_norm": ("vector_norm", {}),
    "unsafe_view": ("view", {}),
}
REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "vector_norm", "var", "std", "logsumexp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node(Record):
    """One value of the graph.

    Example: Node(index=2, op="add", inputs=(0, 1), operands=("self", "other"), args={"alpha": 1}, shape=(64, 8), dtype="float32", kind="op")
    """

    index: int
    op: str
    """Aten name without overload, underscores and synonyms: relu, mul, softmax, layer_norm, amax; the kind itself for the others."""
    inputs: tuple[int, ...] = ()
    """Indices of the tensors it reads, in the order of the operator's schema."""
    operands: tuple[str, ...] = ()
    """The schema's names of `inputs`: self, other, weight, bias, ..."""
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Every argument that is no tensor, defaults filled in, dimensions counted from the front."""
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    strides: tuple[int, ...] = ()
    kind: str = "op"
    """input, parameter, buffer, constant or op."""
    name: str | None = None
    """`forward`'s name of an input, the dotted name of a parameter or buffer."""
    view: bool = False
    """True where the operator moves no data (t, view, expand, getitem)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph(Record):
    """A traced task. Nodes stand in order of execution; inputs first, then parameters and buffers in the model's order, unused ones too."""

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    structure: str = "tensor"
    """tensor, tuple or list: what `forward` returns."""

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that compute or move data, in order: the operator signature."""
        return tuple(node.op for node in self.nodes if node.kind == "op" and not node.view)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == "input")

    @property
    def parameters(self) -> tuple[Node, ...]:
        """Parameters and buffers, in the model's order."""
        return tuple(node for node in self.nodes if node.kind in ("parameter", "buffer"))


def trace(source: str, mode: str = "eval", *, most_nodes: int = 5_000) -> Graph:
    """Run `source`'s model once on the meta device and record what reaches aten. The graph is shared: to be read only.

    Raises ValueError when the source is no task (no Model, get_inputs, get_init_inputs), cannot run without data, or unrolls into more
    than `most_nodes` nodes (a recurrent network over a long sequence).
    The source is executed in this process: trace only what you would run. It does not follow the backward pass.
    """
    return _traced(source, mode, most_nodes)


# Behind `trace`, whose callers spell the same arguments in several ways: each would be a key of its own
@functools.lru_cache(maxsize=4096)
def _traced(source: str, mode: str, most_nodes: int) -> Graph:
    import torch

    namespace: dict[str, Any] = {"__name__": "traced_task"}
    try:
        with torch.device("meta"), torch.no_grad():
            exec(compile(source, "<task>", "exec"), namespace)
            missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in namespace]
            if missing:
                raise ValueError(f"task: got a source without {', '.join(missing)}, wanted Model, get_inputs and get_init_inputs")
            initial = namespace["get_init_inputs"]()
            model = namespace["Model"](**initial) if isinstance(initial, dict) else namespace["Model"](*initial)
            model.train(mode == "train")
            inputs = namespace["get_inputs"]()
            recorder = _recorder(model, inputs, most_nodes)
            with recorder:
                result = model(*inputs)
    except ValueError:
        raise
    except Exception as error:  # whatever the task's own code raises: re-raised as one line about the task
        raise ValueError(f"task: got {type(error).__name__}: {_first_line(error)}, wanted a model that runs on the meta device") from error
    return recorder.graph(result)


def fingerprint(graph: Graph) -> tuple:
    """What a graph computes, names left out: equal for two spellings of the same task.

    Numbers count to six digits, absent options not at all, and `expand` is passed through, since broadcasting does the same.
    """
    stands_for = {n.index: n.inputs[0] for n in graph.nodes if n.op == "expand"}

    def source(index: int) -> int:
        while index in stands_for:
            index = stands_for[index]
        return index

    kept = [node for node in graph.nodes if node.index not in stands_for]
    place = {node.index: at for at, node in enumerate(kept)}
    nodes = tuple((n.op, n.kind, tuple(place[source(i)] for i in n.inputs), n.shape, n.dtype, _exact(n.args)) for n in kept)
    return (*nodes, tuple(place[source(i)] for i in graph.outputs))


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _exact(item)) for key, item in sorted(value.items()) if item is not None)
    if isinstance(value, list):
        return tuple(map(_exact, value))
    return f"{value:.6g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def _recorder(model, inputs, most_nodes: int):
    """A dispatch mode that appends one Node a call; built here so that importing this module stays light."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.nodes: list[Node] = []
            self.index: dict[int, int] = {}
            self.alive: list[Any] = []  # tensors stay alive, so that an id is never used twice
            names = [n for n in inspect.signature(model.forward).parameters if n != "self"]
            for position, value in enumerate(inputs):
                if isinstance(value, torch.Tensor):
                    self.leaf(value, "input", names[position] if position < len(names) else f"input{position}")
            for name, value in model.named_parameters():
                self.leaf(value, "parameter", name)
            for name, value in model.named_buffers():
                self.leaf(value, "buffer", name)

        def leaf(self, tensor, kind: str, name: str) -> int:
            return self.add(tensor, op=kind, kind=kind, name=name)

        def add(self, tensor, **fields) -> int:
            at = len(self.nodes)
            if at >= most_nodes:
                raise ValueError(f"task: got more than {most_nodes} nodes, wanted a graph that is not unrolled so far")
            dtype = str(tensor.dtype).removeprefix("torch.")
            strides = tuple(tensor.stride()) if tensor.layout is torch.strided else ()
            self.nodes.append(Node(index=at, shape=tuple(tensor.shape), dtype=dtype, strides=strides, **fields))
            self.index[id(tensor)] = at
            self.alive.append(tensor)
            return at

        def find(self, tensor) -> int:
            at = self.index.get(id(tensor))
            return self.leaf(tensor, "constant", f"constant{len(self.nodes)}") if at is None else at

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            schema = func._schema
            results = result if isinstance(result, (tuple, list)) else (result,)
            first = next((r for r in results if isinstance(r, torch.Tensor)), None)
            if first is None or (name := schema.name.partition("::")[2].strip("_")) in ("detach", "alias", "lift_fresh"):
                if first is not None and args and isinstance(args[0], torch.Tensor):
                    self.index[id(first)] = self.find(args[0])
                    self.alive.append(first)
                return result
            given, read, operands = _arguments(schema, args, kwargs)
            name, given = _canonical(name, given, read[0].dim() if read else 0)
            aliased = schema.returns and schema.returns[0].alias_info
            view = bool(aliased and not aliased.is_write) or name == "view"
            at = self.add(first, op=name, inputs=tuple(map(self.find, read)), operands=operands, args=given, view=view)
            for extra, tensor in enumerate(results):
                if extra and isinstance(tensor, torch.Tensor):
                    self.add(tensor, op="getitem", inputs=(at,), operands=("self",), args={"index": extra}, view=True)
            return result

        def graph(self, result) -> Graph:
            structure = "tuple" if isinstance(result, tuple) else "list" if isinstance(result, list) else "tensor"
            flat = result if structure != "tensor" else (result,)
            if not flat or not all(isinstance(r, torch.Tensor) for r in flat):
                raise ValueError(f"task: got an output of type {type(result).__name__}, wanted a tensor or a tuple or list of tensors")
            return _tidy(self.nodes, tuple(map(self.find, flat)), structure)

    return Recorder()


def _arguments(schema, args, kwargs):
    """Split a call into plain arguments by name (defaults filled in), tensors read, and the tensors' names."""
    import torch

    plain: dict[str, Any] = {}
    read: list[Any] = []
    operands: list[str] = []
    for position, argument in enumerate(schema.arguments):
        if position < len(args):
            value = args[position]
        elif argument.name in kwargs:
            value = kwargs[argument.name]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            continue
        items = value if isinstance(value, (tuple, list)) else [value]
        tensors = [item for item in items if isinstance(item, torch.Tensor)]
        if tensors:
            read += tensors
            operands += [argument.name] * len(tensors)
        else:
            plain[argument.name] = _plain(value)
    return plain, read, tuple(operands)


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    return str(value)


def _canonical(name: str, args: dict[str, Any], rank: int) -> tuple[str, dict[str, Any]]:
    if name == "hardtanh":
        args = {k: float(v) for k, v in args.items()}
    name, renamed = SYNONYMS.get(name, (name, {}))
    args = {renamed.get(key, key): value for key, value in args.items()}
    if name == "clamp":
        args = {"min": None, "max": None} | args
    if "dim" in args and rank:
        dim = args["dim"]
        args["dim"] = dim % rank if isinstance(dim, int) else [d % rank for d in dim] if isinstance(dim, list) and dim else dim
    if name in REDUCTIONS and not args.get("dim") and not isinstance(args.get("dim"), int):
        args["dim"] = list(range(rank))
        args.setdefault("keepdim", False)
    return name, args


def _tidy(nodes: list[Node], outputs: tuple[int, ...], structure: str) -> Graph:
    """Drop getitem nodes that nobody reads; max and min over a dimension whose indices are unused are amax and amin."""
    used = {i for node in nodes for i in node.inputs} | set(outputs)
    gone = {node.index for node in nodes if node.op == "getitem" and node.index not in used}
    with_indices = {node.inputs[0] for node in nodes if node.op == "getitem" and node.index not in gone}
    kept = [node for node in nodes if node.index not in gone]
    place = {node.index: at for at, node in enumerate(kept)}
    tidy = []
    for node in kept:
        op, args = node.op, node.args
        if op in ("max", "min") and node.index not in with_indices and len(node.inputs) == 1:
            op, dim = "a" + op, args.get("dim")
            rank = len(nodes[node.inputs[0]].shape)
            args = {"dim": list(range(rank)) if dim is None else [dim], "keepdim": args.get("keepdim", False)}
        tidy.append(dataclasses.replace(node, op=op, args=args, index=place[node.index], inputs=tuple(place[i] for i in node.inputs)))
    return Graph(nodes=tuple(tidy), outputs=tuple(place[i] for i in outputs), structure=structure)
