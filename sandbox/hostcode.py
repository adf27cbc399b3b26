"""Rules for a candidate's Python: what runs in `forward` may allocate, view, copy and call own kernels, nothing else.

Names are resolved by scope and by every one of their bindings, through aliases, constant getattr, containers and functions that are
handed on; a call of what cannot be resolved is refused. Whether a value may hold a tensor is found by a greatest fixed point over all
bindings: operators are for what cannot. Code that runs only while the module is built (`__init__`, module level) has wider rules, since
no input is there yet.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from data.records import Status
from sandbox.backends import Failed

IMPORTS = {
    "__future__", "torch", "torch.nn", "torch.nn.functional", "torch.utils", "torch.utils.cpp_extension", "math", "operator", "typing", "cuda_extension",
    "functools", "itertools", "collections", "dataclasses", "triton", "triton.language", "triton.language.extra", "triton.language.extra.cuda", "cupy",
}  # fmt: skip
NAMES = {
    "eval", "exec", "compile", "globals", "locals", "vars", "open", "input", "breakpoint", "setattr", "delattr", "memoryview", "dir", "classmethod_descriptor",
}  # fmt: skip
ALLOCATE = {
    "empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "Size", "device", "no_grad", "inference_mode",
    "is_tensor", "is_floating_point", "get_num_threads", "finfo", "iinfo", "is_grad_enabled", "get_default_dtype",
}  # fmt: skip
METHODS = {
    "size", "stride", "numel", "dim", "ndimension", "data_ptr", "element_size", "storage_offset", "is_contiguous", "nelement", "contiguous", "clone", "copy_",
    "view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "permute", "transpose", "t", "narrow", "select",
    "detach", "requires_grad_", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "zero_", "fill_", "to", "float", "double", "half",
    "bfloat16", "int", "long", "type", "cpu", "cuda", "is_floating_point", "dim_order", "movedim", "as_strided", "unfold", "item", "tolist", "get_device",
    "unbind", "chunk", "split", "swapaxes", "broadcast_to",
    "get", "append", "items", "keys", "values", "index", "extend", "insert", "clear", "format", "join", "setdefault", "update", "pop", "popitem", "startswith",
    "endswith", "replace", "lower", "named_parameters", "parameters", "named_buffers", "buffers", "register_buffer",
    "wait_stream", "wait_event", "record", "record_event", "record_stream", "synchronize", "query", "elapsed_time", "replay", "capture_begin", "capture_end",
    "pool", "reset",
}  # fmt: skip
"""Methods of tensors that allocate, view, convert or copy, of plain containers, of CUDA streams, events and graphs."""
MAKES_NUMBER = {
    "size", "stride", "numel", "dim", "ndimension", "data_ptr", "element_size", "item", "tolist", "is_contiguous", "nelement", "storage_offset", "dim_order",
    "is_floating_point", "get_device", "elapsed_time", "query", "startswith", "endswith",
}  # fmt: skip
FACTS = {"shape", "ndim", "dtype", "device", "layout", "is_cuda", "requires_grad", "itemsize", "nbytes", "training", "cuda_stream"}
"""Attributes of a tensor or module that hold no tensor."""
SETTINGS = {
    "eps", "stride", "padding", "dilation", "groups", "kernel_size", "in_channels", "out_channels", "in_features", "out_features", "num_features",
    "num_groups", "num_channels", "normalized_shape", "negative_slope", "hidden_size", "input_size", "num_layers", "embedding_dim", "num_embeddings",
    "padding_idx", "momentum", "output_padding", "embed_dim", "num_heads", "head_dim", "padding_mode", "affine", "elementwise_affine",
}  # fmt: skip
"""Attributes of torch's layers that hold numbers."""
PURE = {
    "len", "int", "float", "bool", "str", "range", "isinstance", "hasattr", "print", "id", "repr", "callable", "issubclass", "complex", "ord",
    "chr",
}  # fmt: skip
"""Builtins whose value is no tensor, whatever they are given."""
CARRIERS = {"tuple", "list", "dict", "set", "frozenset", "enumerate", "zip", "reversed", "next", "iter", "type", "slice"}
ARITHMETIC = {"min", "max", "sum", "abs", "pow", "round", "divmod", "sorted", "any", "all"}
"""Builtins that become torch operators when handed a tensor."""
ERRORS = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)}
OPERATORS = {
    "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "lt", "le", "eq", "ne", "ge", "gt", "lshift", "rshift", "and_", "or_", "xor", "index",
}  # fmt: skip
ITERTOOLS = {
    "chain", "product", "count", "repeat", "islice", "zip_longest", "cycle", "accumulate", "starmap", "takewhile", "dropwhile", "filterfalse",
}  # fmt: skip
CALLERS = {
    "map": 0, "filter": 0, "functools.reduce": 0, "functools.partial": 0, "itertools.starmap": 0, "itertools.takewhile": 0, "itertools.dropwhile": 0,
    "itertools.filterfalse": 0, "itertools.accumulate": 1, "collections.defaultdict": 0,
}  # fmt: skip
"""What calls its arguments -> place of the function."""
KEYWORD_CALLERS = {
    "sorted": "key", "min": "key", "max": "key", "itertools.accumulate": "func", "dataclasses.field": "default_factory", "collections.defaultdict": "default_factory",
}  # fmt: skip
LOADERS = {
    "torch.utils.cpp_extension.load": "module", "torch.utils.cpp_extension.load_inline": "module", "cupy.RawModule": "raw", "cupy.RawKernel": "kernel",
    "cupy.ElementwiseKernel": "kernel", "cupy.ReductionKernel": "kernel",
}  # fmt: skip
"""What builds kernels of the candidate's own, and what it returns."""
CUPY_ARRAYS = {"asarray", "from_dlpack", "empty", "empty_like"}
CUPY = {
    "RawKernel", "RawModule", "ElementwiseKernel", "ReductionKernel", "cuda.ExternalStream", "cuda.Stream", "cuda.Device", "cuda.get_current_stream",
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool_", "intp",
} | CUPY_ARRAYS  # fmt: skip
"""Of CuPy: own kernels, streams, views and scalars of a launch; its other array functions are a library's work."""
CUDA = {
    "current_stream", "default_stream", "Stream", "ExternalStream", "stream", "Event", "device", "current_device", "device_count", "set_device",
    "get_device_properties", "get_device_capability", "get_device_name", "synchronize", "is_available", "is_current_stream_capturing", "CUDAGraph", "graph",
    "graph_pool_handle",
}  # fmt: skip
"""Of torch.cuda: streams, events, graphs and facts."""
CUDA_FACTS = {"current_device", "device_count", "get_device_properties", "get_device_capability", "get_device_name", "is_available"}
TRITON = {"cdiv", "next_power_of_2", "Config", "jit", "autotune", "heuristics"}
PLAIN = {
    "Tensor", "Size", "dtype", "device", "strided", "contiguous_format", "channels_last", "channels_last_3d", "preserve_format", "inf", "nan", "pi", "e", "float",
    "float16", "float32", "float64", "half", "double", "bfloat16", "int", "long", "short", "int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
    "bool", "nn", "cuda", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128", "utils", "version", "memory_format",
}  # fmt: skip
"""Of torch: what may be named without being called."""
DECORATORS = {
    "staticmethod", "classmethod", "property", "torch.no_grad", "torch.inference_mode", "functools.lru_cache", "functools.cache", "functools.cached_property",
    "triton.jit", "triton.autotune", "triton.heuristics", "dataclasses.dataclass",
}  # fmt: skip
BASES = {"torch.nn.Module", "object", "typing.NamedTuple"} | ERRORS
BUILDING = {"torch", "torch.nn", "torch.nn.init", "torch.nn.functional", "torch.Tensor", "torch.cuda", "torch.utils.cpp_extension"}
"""Where functions may come from that are called while the module is built."""
WEIGHT_NORMS = {"torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm"}
"""They compute in a hook of a module that is never called."""
REACHES_OUT = {"load", "save", "from_file", "compile", "vmap", "set_default_device", "cond", "while_loop"}
MODULE_METHODS = {
    "forward", "train", "eval", "apply", "to", "half", "float", "double", "bfloat16", "cuda", "cpu", "type", "state_dict", "load_state_dict", "named_parameters",
    "parameters", "named_buffers", "buffers", "named_modules", "modules", "children", "named_children", "zero_grad", "requires_grad_", "extra_repr",
    "get_parameter", "get_buffer", "get_submodule", "get_extra_state", "set_extra_state", "share_memory", "register_buffer", "register_parameter",
}  # fmt: skip
"""Methods that others than the candidate call: their arguments may be anything."""
GRAPHS = {"torch.cuda.graph", "torch.cuda.graphs.graph", "torch.cuda.make_graphed_callables"}
"""What captures: a graph may hold the work of forward only."""
MUTATORS = {"append", "extend", "insert", "setdefault", "update"}
REGISTERS = {"register_buffer", "register_parameter"}
RESERVED = {
    "getattr", "hasattr", "super", "staticmethod", "classmethod", "property", "cached_property", "isinstance", "len", "enumerate", "zip", "tuple", "list",
    "bool",
}  # fmt: skip
"""Names that the rules know by their spelling: nothing else may be bound to them."""
OPEN_NAMES = {"ModuleDict", "ParameterDict", "BufferDict"}
"""Of torch.nn: their keys become attributes and methods by names that cannot be followed."""
HOLD_TENSORS = {"Parameter", "Buffer", "UninitializedParameter", "ParameterList", "ModuleList", "Sequential", "Module"}
"""Of torch.nn: what may be made of tensors and modules. The settings of all other layers are numbers."""


def reject(rule: str, reason: str) -> Failed:
    return Failed(Status.REJECTED, reason, rule=rule)


class Scope:
    """A module, class, function, lambda or comprehension, and what its names are bound to."""

    def __init__(self, node: ast.AST, parent: Scope | None, kind: str, file: str):
        self.node, self.parent, self.kind, self.file = node, parent, kind, file
        self.names: dict[str, list[Binding]] = {}
        self.elsewhere: dict[str, Scope] = {}
        self.module: Scope = parent.module if parent else self


class Binding(NamedTuple):
    """How a name or attribute gets a value: value, element (of `node`, by iteration), import (full name), def, class, param, property, unknown."""

    how: str
    node: Any


class Value(NamedTuple):
    """What an expression may be called as.

    kind: lib (full name), builtin, module, raw, kernel, jit, function (nodes), class (nodes), instance (nodes), of (Value), none, unknown.
    """

    kind: str
    data: Any = None


ROUNDS = 60
"""Of a fixed point; what needs more is refused."""
MAX_NODES = 60_000
LIBRARIES = {"math", "operator", "typing", "functools", "itertools", "collections", "dataclasses", "triton", "cupy"}
PURE_CALLS = {"triton.cdiv", "triton.next_power_of_2", "math.ceil", "math.floor", "math.log2", "math.prod", "math.sqrt"}
UNKNOWN, NONE, KERNEL = Value("unknown"), Value("none"), Value("kernel")
Function = ast.FunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
CALLABLE = {"kernel", "function", "class"}
LAUNCHED = CALLABLE | {"jit", "module", "raw"}


def normalise(tree: ast.Module) -> ast.Module:
    """getattr(x, "name") becomes x.name: all rules then see one spelling."""

    class Spelling(ast.NodeTransformer):
        def visit_Call(self, node):
            self.generic_visit(node)
            named = isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) in (2, 3) and not node.keywords
            if not named or not isinstance(node.args[1], ast.Constant) or not isinstance(node.args[1].value, str):
                return node
            attribute = ast.Attribute(value=node.args[0], attr=node.args[1].value, ctx=ast.Load())
            new = ast.BoolOp(op=ast.Or(), values=[attribute, node.args[2]]) if len(node.args) == 3 else attribute
            return ast.fix_missing_locations(ast.copy_location(new, node))

    return Spelling().visit(tree)


class Program:
    """All Python files of a candidate, names resolved."""

    def __init__(self, trees: dict[str, ast.Module]):
        self.files = {name: normalise(tree) for name, tree in trees.items()}
        self.modules: dict[str, Scope] = {}
        self.attributes: dict[str, list[Binding]] = {}
        self.nodes: list[ast.AST] = []
        for name, tree in self.files.items():
            scope = Scope(tree, None, "module", name)
            self.modules[_module(name)] = scope
            self._body(tree.body, scope, tree)
        self.functions = [n for n in self.nodes if isinstance(n, Function)]
        self.classes = [n for n in self.nodes if isinstance(n, ast.ClassDef)]
        self.scopes = {id(n.scope): n.scope for n in self.nodes} | {id(n.inside): n.inside for n in self.nodes if hasattr(n, "inside")}
        self.variables = {("name", key, name): found for key, scope in self.scopes.items() for name, found in scope.names.items()}
        self.variables |= {("attribute", name): found for name, found in self.attributes.items()}
        self._find_stores()
        self._settle()
        self._find_uses()
        self._settle_plain()

    # ---- scopes ----

    def _body(self, nodes, scope: Scope, parent: ast.AST) -> None:
        for node in nodes:
            self._visit(node, scope, parent)

    def _visit(self, node: ast.AST | None, scope: Scope, parent: ast.AST) -> None:
        if node is None:
            return
        node.scope, node.up = scope, parent
        self.nodes.append(node)
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._bind(node.name, Binding("class", node), scope)
            self._body([*node.decorator_list, *node.bases, *(k.value for k in node.keywords)], scope, node)
            node.inside = Scope(node, scope, "class", scope.file)
            self._body(node.body, node.inside, node)
        elif isinstance(node, Comprehension):
            inside = Scope(node, scope, "function", scope.file)
            for number, part in enumerate(node.generators):
                part.scope, part.up = inside, node
                self.nodes.append(part)
                self._visit(part.iter, inside if number else scope, part)
                self._target(part.target, Binding("element", part.iter), inside, part)
                self._body(part.ifs, inside, part)
            self._body([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt], inside, node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            return
        elif isinstance(node, ast.Call) and (name := _registered(node)):
            self.attributes.setdefault(name, []).append(Binding("unknown", node))
            self._statement(node, scope)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, scope)
        else:
            self._statement(node, scope)

    def _statement(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Assign):
            self._visit(node.value, scope, node)
            for target in node.targets:
                self._target(target, Binding("value", node.value), scope, node)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            self._body([node.value, getattr(node, "annotation", None)], scope, node)
            if (
                scope.kind == "class"
                and isinstance(node.target, ast.Name)
                and not any(getattr(n, "name", "") == "__init__" for n in scope.node.body)
            ):
                self._target(node.target, Binding("field", scope.node), scope, node)
                if node.value is None:
                    return
            self._target(node.target, Binding("value", node.value) if node.value else Binding("unknown", node), scope, node)
        elif isinstance(node, ast.NamedExpr):
            self._visit(node.value, scope, node)
            # A walrus inside a comprehension binds in the function around it
            around = scope
            while isinstance(around.node, Comprehension):
                around = around.parent
            self._target(node.target, Binding("value", node.value), around, node)
        elif isinstance(node, ast.For):
            self._visit(node.iter, scope, node)
            self._target(node.target, Binding("element", node.iter), scope, node)
            self._body([*node.body, *node.orelse], scope, node)
        elif isinstance(node, ast.With):
            for item in node.items:
                item.scope, item.up = scope, node
                self._visit(item.context_expr, scope, item)
                if item.optional_vars is not None:
                    self._target(item.optional_vars, Binding("unknown", item), scope, item)
            self._body(node.body, scope, node)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._target(target, Binding("none", node), scope, node)
        else:
            if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                self._bind(node.name, Binding("unknown", node), scope)
            if isinstance(node, ast.MatchMapping) and node.rest:
                self._bind(node.rest, Binding("unknown", node), scope)
            self._body(ast.iter_child_nodes(node), scope, node)

    def _function(self, node: Function, scope: Scope) -> None:
        a = node.args
        arguments = [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])]
        around = [*a.defaults, *a.kw_defaults, *(x.annotation for x in arguments)]
        inside = Scope(node, scope, "function", scope.file)
        node.inside = inside
        if isinstance(node, ast.FunctionDef):
            self._bind(node.name, Binding("def", node), scope)
            around += [*node.decorator_list, node.returns]
            for statement in _own_nodes(node):
                if isinstance(statement, ast.Global):
                    inside.elsewhere |= dict.fromkeys(statement.names, scope.module)
                elif isinstance(statement, ast.Nonlocal):
                    inside.elsewhere |= dict.fromkeys(statement.names, _enclosing(scope))
        self._body(around, scope, node)
        for argument in arguments:
            argument.function = node
            inside.names.setdefault(argument.arg, []).append(Binding("param", argument))
        self._body(node.body if isinstance(node, ast.FunctionDef) else [node.body], inside, node)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                self._bind(
                    alias.asname or alias.name.split(".")[0],
                    Binding("import", alias.name if alias.asname else alias.name.split(".")[0]),
                    scope,
                )
            else:
                self._bind(alias.asname or alias.name, Binding("import", f"{node.module}.{alias.name}"), scope)

    def _target(self, target: ast.AST, binding: Binding, scope: Scope, parent: ast.AST) -> None:
        target.scope, target.up = scope, parent
        self.nodes.append(target)
        if isinstance(target, ast.Name):
            self._bind(target.id, binding, scope)
        elif isinstance(target, ast.Attribute):
            self.attributes.setdefault(target.attr, []).append(binding)
            self._visit(target.value, scope, target)
        elif isinstance(target, ast.Starred):
            self._target(target.value, binding, scope, target)
        elif isinstance(target, ast.Tuple | ast.List):
            source = binding.node
            paired = (
                binding.how == "value" and isinstance(source, ast.Tuple | ast.List) and len(source.elts) == len(target.elts)
                and not any(isinstance(e, ast.Starred) for e in (*source.elts, *target.elts))
            )  # fmt: skip
            for number, element in enumerate(target.elts):
                way = (
                    Binding("value", source.elts[number])
                    if paired
                    else Binding("element" if binding.how in ("value", "element") else binding.how, source)
                )
                self._target(element, way, scope, target)
        elif isinstance(target, ast.Subscript):
            target.stored = binding
            self._body([target.value, target.slice], scope, target)

    def _bind(self, name: str, binding: Binding, scope: Scope) -> None:
        scope = scope.elsewhere.get(name, scope)
        scope.names.setdefault(name, []).append(binding)
        if scope.kind == "class":
            how = binding.how
            if how == "def" and any(
                _spelled(d) in ("property", "functools.cached_property", "cached_property") for d in binding.node.decorator_list
            ):
                how = "property"
            self.attributes.setdefault(name, []).append(Binding(how, binding.node))

    def resolve(self, name: str, scope: Scope) -> Scope | None:
        """The scope whose name this is, None for a builtin."""
        first, current = True, scope
        while current is not None:
            current = current.elsewhere.get(name, current)
            if name in current.names and (first or current.kind != "class"):
                return current
            first, current = False, current.parent
        return None

    # ---- what may be called ----

    def _settle(self) -> None:
        """Least fixed point of what every variable and function's result may be called as."""
        self.values: dict[tuple, Value] = {}
        for _ in range(ROUNDS):
            changed = False
            for key, bindings in self.variables.items():
                new = self._join([self._bound(b) for b in bindings])
                if new.kind == "of" and new.data.kind in LAUNCHED and key in self.escaped:
                    new = UNKNOWN
                if new != self.values.get(key, NONE):
                    self.values[key], changed = new, True
            for function in self.functions:
                new = self._join([self.value(r) for r in _returned(function)])
                if new != self.values.get(("result", id(function)), NONE):
                    self.values["result", id(function)], changed = new, True
            if not changed:
                return
        raise reject("introspection", "names are too entangled to follow")

    def _key(self, node: ast.AST) -> tuple | None:
        """The variable a Name or Attribute stands for, None for builtins and attributes that the candidate never binds."""
        if isinstance(node, ast.Name):
            scope = self.resolve(node.id, node.scope)
            return None if scope is None else self._origin(scope, node.id)
        if not isinstance(node, ast.Attribute):
            return None
        name, _, rest = _spelled(node).partition(".")
        scope = self.resolve(name, node.scope) if name else None
        imported = [b.node for b in scope.names[name] if b.how == "import"] if scope else []
        module, inside = self.sidecar(f"{imported[0]}.{rest}") if len(imported) == 1 else (None, "")
        if module is not None and inside in module.names:
            return self._origin(module, inside)
        return ("attribute", node.attr) if node.attr in self.attributes else None

    def _origin(self, scope: Scope, name: str) -> tuple:
        """The variable behind a name: where it is imported out of another file, the one there."""
        for _ in self.modules:
            bindings = [b for b in scope.names[name] if b.how != "none"]
            module, inside = self.sidecar(bindings[0].node) if len(bindings) == 1 and bindings[0].how == "import" else (None, "")
            if module is None or inside not in module.names:
                break
            scope, name = module, inside
        return "name", id(scope), name

    def sidecar(self, full: str) -> tuple[Scope | None, str]:
        """The candidate's own module that a full name begins with, and the rest of the name."""
        parts = full.split(".")
        for length in range(len(parts), 0, -1):
            if (name := ".".join(parts[:length])) in self.modules:
                return self.modules[name], ".".join(parts[length:])
        return None, full

    def value(self, node: ast.AST | None) -> Value:
        """What `node` may be called as, over all bindings of all names in it."""
        if isinstance(node, ast.Constant):
            return NONE if node.value is None else UNKNOWN
        if isinstance(node, ast.Name):
            key = self._key(node)
            return Value("builtin", node.id) if key is None else self.values.get(key, NONE)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Lambda):
            return Value("function", frozenset([node]))
        if isinstance(node, ast.IfExp):
            return self._join([self.value(n) for n in (node.body, node.orelse)])
        if isinstance(node, ast.BoolOp):
            return self._join([self.value(n) for n in node.values])
        if isinstance(node, ast.NamedExpr):
            value = self.value(node.value)
            return UNKNOWN if value.kind == "of" else value
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return self._of([self.value(n) for n in node.elts])
        if isinstance(node, ast.Dict):
            return self._of([self.value(n) for n in node.values])
        if isinstance(node, Comprehension):
            return self._of([self.value(node.value if isinstance(node, ast.DictComp) else node.elt)])
        if isinstance(node, ast.Subscript):
            base = self.value(node.value)
            return KERNEL if base.kind == "jit" else base.data if base.kind == "of" else base if base.kind == "none" else UNKNOWN
        return self._result(node) if isinstance(node, ast.Call) else UNKNOWN

    def _of(self, elements: list[Value]) -> Value:
        element = self._join(elements)
        return Value("of", UNKNOWN if element.kind == "of" else element)

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self.value(node.value)
        if base.kind == "lib":
            return self._library(f"{base.data}.{node.attr}")
        if base.kind == "module":
            return KERNEL
        found = self.values.get(("attribute", node.attr), NONE)
        if self.own_object(node.value):
            return found if node.attr in self.attributes else UNKNOWN
        if base.kind == "class" and node.attr in self.attributes:
            return found if all(b.how == "def" and _static(b.node) for b in self.attributes[node.attr]) else UNKNOWN
        return base if base.kind == "none" else UNKNOWN

    def number_of(self, attribute: str) -> bool:
        """No attribute or method of that name in the candidate's own classes gives a tensor."""
        return ("attribute", attribute) not in self.mixed and self.value_of(attribute).kind not in ("function", "kernel")

    def value_of(self, attribute: str) -> Value:
        """What an attribute of that name may be called as, whatever holds it."""
        return self.values.get(("attribute", attribute), NONE)

    def own_object(self, node: ast.AST) -> bool:
        """`self` of a method, its `super()`, or an instance of a class of the candidate's."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return isinstance(node.scope.node, ast.FunctionDef) and _method(node.scope.node) is not None and not _static(node.scope.node)
        if isinstance(node, ast.Name):
            scope = self.resolve(node.id, node.scope)
            if scope is not None and [b.how for b in scope.names[node.id]] == ["param"]:
                function = scope.node
                first = [*function.args.posonlyargs, *function.args.args][:1]
                return bool(first) and first[0].arg == node.id and _method(function) and not _static(function)
        return self.value(node).kind == "instance"

    def _library(self, full: str) -> Value:
        root, _, rest = full.partition(".")
        if root == "cuda_extension":
            return KERNEL if rest else Value("module")
        module, inside = self.sidecar(full)
        if module is None or not inside:
            return Value("lib", full)
        return self.values.get(self._origin(module, inside), UNKNOWN) if inside in module.names else UNKNOWN

    def _bound(self, binding: Binding) -> Value:
        how, node = binding
        if how == "value":
            return self.value(node)
        if how == "element":
            base = self.value(node)
            return base.data if base.kind == "of" else base if base.kind == "none" else UNKNOWN
        if how == "stored":
            return self._of([self.value(node)])
        if how == "import":
            return self._library(node)
        if how == "none":
            return NONE
        if how == "def":
            return Value("jit") if self.is_jit(node) else Value("function", frozenset([node]))
        if how == "property":
            return self.values.get(("result", id(node)), NONE)
        return Value("class", frozenset([node])) if how == "class" else UNKNOWN

    def _join(self, values: list[Value]) -> Value:
        found = [v for v in dict.fromkeys(values) if v.kind != "none"]
        if len(found) <= 1:
            return found[0] if found else NONE
        kinds = {v.kind for v in found}
        if kinds <= CALLABLE or kinds == {"instance"}:
            nodes = frozenset().union(*({KERNEL} if v == KERNEL else v.data for v in found))
            return Value("instance" if kinds == {"instance"} else "function", nodes)
        return self._of([v.data for v in found]) if kinds == {"of"} else UNKNOWN

    def _result(self, node: ast.Call) -> Value:
        called = self.value(node.func)
        if called.kind == "none":
            return NONE
        if called.kind == "lib":
            if called.data in LOADERS:
                plain_module = not any(k.arg in (None, "is_python_module", "is_standalone") for k in node.keywords)
                return Value(LOADERS[called.data]) if plain_module else UNKNOWN
            if called.data == "collections.namedtuple":
                return Value("class", frozenset())
            inner = self.value(node.args[0]) if called.data == "functools.partial" and node.args else UNKNOWN
            return inner if inner.kind in (*CALLABLE, "none") else UNKNOWN
        if called.kind == "function" and called.data and all(isinstance(f, Function) for f in called.data):
            if any(_generator(f) for f in called.data):
                return UNKNOWN
            return self._join([self.values.get(("result", id(f)), NONE) for f in called.data])
        if called.kind == "class" and called.data:
            return Value("instance", called.data)
        if called.kind == "builtin" and called.data in ("tuple", "list", "reversed") and len(node.args) == 1:
            return self.value(node.args[0])
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value)
            if node.func.attr == "get_function" and base.kind == "raw":
                return KERNEL
            if base.kind == "of" and node.func.attr in ("get", "pop", "setdefault"):
                return base.data
            if base.kind == "of" and node.func.attr in ("values", "items"):
                return base
        return UNKNOWN

    def container(self, node: ast.AST) -> bool:
        """A container of Python's own, whatever it holds."""
        made = [b.node for b in self.variables.get(self._key(node), ()) if b.how not in ("stored", "none")]
        plain = {"dict", "set", "list", "collections.OrderedDict", "collections.defaultdict", "collections.deque"}
        calls = [n for n in made if isinstance(n, ast.Call) and self.value(n.func).data in plain]
        return self.value(node).kind == "of" or (bool(made) and len(calls) == len(made))

    def is_jit(self, function: ast.AST) -> bool:
        """A Triton kernel: device code, not what runs in forward."""
        return any(self.value(d.func if isinstance(d, ast.Call) else d) == Value("lib", "triton.jit") for d in function.decorator_list)

    def _find_stores(self) -> None:
        """What is stored into containers, and the containers that are handed where stores cannot be followed."""
        self.stores: list[tuple[ast.AST, ast.AST | None]] = []
        for node in self.nodes:
            if isinstance(node, ast.Subscript) and hasattr(node, "stored"):
                self._store(node.value, node.stored.node if node.stored.how == "value" else None, False)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                for argument in [*node.args, *(k.value for k in node.keywords)]:
                    self._store(node.func.value, argument, node.func.attr in ("extend", "update"))
        loads = [n for n in self.nodes if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Load) and self._key(n)]
        loads = [n for n in loads if not (self._key(n)[0] == "attribute" and self._imported(n))]
        # Two targets of one assignment are two names of one container
        shared = [t for n in self.nodes if isinstance(n, ast.Assign) and len(n.targets) > 1 for t in n.targets]
        shared += [n.target for n in self.nodes if isinstance(n, ast.NamedExpr)]
        self.escaped = {k for n in (*(n for n in loads if _escapes(n)), *shared) for k in self._same(self._key(n))}

    def _imported(self, node: ast.AST) -> bool:
        """The first name of a dotted one is an import and nothing else."""
        while isinstance(node, ast.Attribute):
            node = node.value
        key = self._key(node) if isinstance(node, ast.Name) else None
        return key is not None and all(b.how == "import" for b in self.variables[key])

    def _store(self, base: ast.AST, stored: ast.AST | None, whole: bool) -> None:
        self.stores.append((base, stored))
        binding = Binding("unknown", base) if stored is None else Binding("value" if whole else "stored", stored)
        for key in self._same(self._key(base)):
            self.variables[key].append(binding)

    def _same(self, key: tuple | None) -> list[tuple]:
        """A name of a class body is an attribute too."""
        also = ("attribute", key[2]) if key is not None and key[0] == "name" and self.scopes[key[1]].kind == "class" else None
        return [k for k in (key, also) if k is not None]

    # ---- what may hold a tensor ----

    def _settle_plain(self) -> None:
        """Greatest fixed point: a variable is plain until one of its bindings, or what is stored in it, may be a tensor."""
        self.mixed: set[tuple] = set()
        for _ in range(ROUNDS):
            before = len(self.mixed)
            for key, bindings in self.variables.items():
                if key not in self.mixed and not all(self._plain_binding(b, key) for b in bindings):
                    self.mixed.add(key)
            for function in self.functions:
                key = ("result", id(function))
                if key not in self.mixed and (_generator(function) or not all(r is None or self.plain(r) for r in _returned(function))):
                    self.mixed.add(key)
            for base, stored in self.stores:
                if stored is None or not self.plain(stored):
                    self._taint(base, set())
            if len(self.mixed) == before:
                return
        raise reject("introspection", "values are too entangled to follow")

    def _plain_binding(self, binding: Binding, key: tuple) -> bool:
        how, node = binding
        if how in ("value", "element", "stored"):
            # A class body's `x = x` reads the x outside
            itself = key[0] == "name" and any(
                isinstance(n, ast.Name) and n.id == key[2] and n.scope.kind == "class" for n in ast.walk(node)
            )
            return self.plain(node) and not itself
        if how == "param":
            return self._plain_parameter(node)
        if how == "property":
            return ("result", id(node)) not in self.mixed
        if how == "field":
            return all(self._made_plainly(c) for c in self.classes if node in self.ancestors(c))
        if how == "import" and self.sidecar(node)[0] is not None:
            module, inside = self.sidecar(node)
            return not inside or (inside in module.names and self._origin(module, inside) not in self.mixed)
        return how in ("import", "none", "def", "class")

    def _taint(self, node: ast.AST, seen: set[int]) -> None:
        """A tensor was stored in what `node` stands for, and so in everything that it may be another name of."""
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, ast.Name | ast.Attribute):
            key = self._key(node)
            self.mixed.update(self._same(key))
            for binding in self.variables.get(key, ()):
                if binding.how == "param":
                    for given in (*(g for _, g in self._given(binding.node)), *self._beside(binding.node.function)):
                        self._taint(given, seen)
                elif isinstance(binding.node, ast.expr):
                    self._taint(binding.node, seen)
            if isinstance(node, ast.Attribute):
                self._taint(node.value, seen)
        elif isinstance(node, ast.Subscript):
            self._taint(node.value, seen)
        elif isinstance(node, ast.expr):
            called = self.value(node.func) if isinstance(node, ast.Call) else NONE
            for function in _functions(called):
                self.mixed.add(("result", id(function)))
                for returned in _returned(function):
                    self._taint(returned, seen)
            targets = node.up.targets if isinstance(getattr(node, "up", None), ast.Assign) else ()
            for child in (*ast.iter_child_nodes(node), *(t.value if isinstance(t, ast.Subscript) else t for t in targets)):
                self._taint(child, seen)

    def _beside(self, function: Function) -> list[ast.AST]:
        """What stands beside a function in the calls that it is handed to."""
        calls = [
            n.up if isinstance(n.up, ast.Call) else n.up.up
            for n in self.handed.get(id(function), ())
            if isinstance(n.up, ast.Call | ast.keyword)
        ]
        return [a for c in calls if isinstance(c, ast.Call) for a in (*c.args, *(k.value for k in c.keywords))]

    def plain(self, node: ast.AST | None) -> bool:
        """True where no value of `node` can be or hold a tensor."""
        if node is None or isinstance(node, ast.Constant | ast.JoinedStr | ast.Lambda | ast.Slice):
            return True
        if isinstance(node, ast.Name):
            value, key = self.value(node), self._key(node)
            if value.kind == "lib":
                return _plain_library(value.data)
            return node.id in PURE | CARRIERS | ERRORS if key is None else key not in self.mixed
        if isinstance(node, ast.Attribute):
            return self._plain_attribute(node)
        if isinstance(node, ast.Subscript | ast.Starred | ast.NamedExpr):
            return self.plain(node.value)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Not) or self.plain(node.operand)
        if isinstance(node, ast.Compare):
            return all(isinstance(o, ast.Is | ast.IsNot | ast.In | ast.NotIn) for o in node.ops) or all(
                map(self.plain, (node.left, *node.comparators))
            )
        if isinstance(node, ast.IfExp):
            return self.plain(node.body) and self.plain(node.orelse)
        if isinstance(node, Comprehension):
            return all(map(self.plain, [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]))
        if isinstance(node, ast.BinOp | ast.BoolOp | ast.Tuple | ast.List | ast.Set | ast.Dict):
            return all(self.plain(n) for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr))
        return isinstance(node, ast.Call) and self._plain_result(node)

    def _plain_attribute(self, node: ast.Attribute) -> bool:
        value, key = self.value(node), self._key(node)
        if value.kind == "lib":
            return _plain_library(value.data)
        if key is not None and key[0] == "name":
            return key not in self.mixed
        if node.attr in self.attributes:
            return ("attribute", node.attr) not in self.mixed
        if node.attr in FACTS and not (self.own_object(node.value) and node.attr != "training"):
            return True
        if node.attr in SETTINGS and not self.own_object(node.value):
            return True
        return self.plain(node.value) and not self.own_object(node.value)

    def _plain_result(self, node: ast.Call) -> bool:
        called, arguments = self.value(node.func), [*node.args, *(k.value for k in node.keywords)]
        if called.kind in ("function", "class") and called.data is not None:
            if called.kind == "class":
                return all(map(self.plain, arguments))
            return self._plain_handed(called)
        if called.data in CALLERS and len(node.args) > CALLERS[called.data]:
            handed = node.args[CALLERS[called.data]]
            return self._plain_handed(self.value(handed)) and all(self.plain(a) for a in arguments if a is not handed)
        if called.kind == "builtin":
            return called.data in PURE or (called.data in CARRIERS | ARITHMETIC | ERRORS and all(map(self.plain, arguments)))
        if called.kind == "lib":
            root, _, rest = called.data.partition(".")
            if root == "torch":
                return (
                    rest in ("finfo", "iinfo", "device", "Size", "get_num_threads", "is_tensor", "is_floating_point")
                    or rest.removeprefix("cuda.") in CUDA_FACTS
                )
            handed = [v for v in map(self.value, arguments) if v.kind == "function"]
            return (
                root in LIBRARIES and rest not in CUPY_ARRAYS and all(map(self.plain, arguments)) and all(map(self._plain_handed, handed))
            )
        if isinstance(node.func, ast.Attribute) and called.kind != "kernel":
            if node.func.attr in MAKES_NUMBER and self.number_of(node.func.attr):
                return True
            return (
                node.func.attr not in self.attributes
                and self.plain(node.func.value)
                and all(map(self.plain, arguments))
                and not self.own_object(node.func.value)
            )
        return False

    def lists(self, node: ast.AST | None, inside: bool = False, seen: set[tuple] | None = None) -> bool:
        """The value of a plain `node` may be a list or a tuple with one in it; with `inside`, something in it may be. Indexing by those gathers."""
        seen = set() if seen is None else seen
        if (
            node is None
            or (id(node), inside) in seen
            or isinstance(node, ast.Constant | ast.JoinedStr | ast.Compare | ast.UnaryOp | ast.Slice)
        ):
            return False
        seen.add((id(node), inside))

        def any_of(nodes, inside=inside):
            return any(self.lists(n, inside, seen) for n in nodes)

        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return (not inside and not isinstance(node, ast.Tuple)) or any_of(node.elts, False) or any_of(node.elts, True)
        if isinstance(node, ast.Dict | Comprehension):
            values = node.values if isinstance(node, ast.Dict) else [node.value if isinstance(node, ast.DictComp) else node.elt]
            return not inside or any_of(values, False) or any_of(values, True)
        if isinstance(node, ast.IfExp | ast.BoolOp | ast.BinOp | ast.NamedExpr):
            parts = {ast.IfExp: ("body", "orelse"), ast.BinOp: ("left", "right"), ast.NamedExpr: ("value",)}.get(type(node), ())
            return any_of([getattr(node, p) for p in parts] or node.values)
        if isinstance(node, ast.Starred | ast.Subscript):
            return any_of([node.value], True) or (
                isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and any_of([node.value])
            )
        if isinstance(node, ast.Name | ast.Attribute):
            key = self._key(node)
            if key is None:
                return isinstance(node, ast.Attribute) and node.attr in SETTINGS
            return any(self._lists_bound(b, inside, any_of) for b in self.variables[key])
        return not isinstance(node, ast.Call) or self._lists_result(node, inside, any_of)

    def _lists_bound(self, binding: Binding, inside: bool, any_of: Callable) -> bool:
        how, node = binding
        if how == "param":
            return any_of([g for _, g in self._given(node)]) or any_of(self._beside(node.function), True)
        if how == "field":
            return any_of([a for c in self.made.get(id(node), ()) for a in (*c.args, *(k.value for k in c.keywords))])
        if how == "property":
            return any_of(_returned(node))
        if how == "stored":
            return inside and (any_of([node], False) or any_of([node], True))
        return how == "unknown" or (how == "value" and any_of([node])) or (how == "element" and any_of([node], True))

    def _lists_result(self, node: ast.Call, inside: bool, any_of: Callable) -> bool:
        called, arguments = self.value(node.func), [*node.args, *(k.value for k in node.keywords)]
        root, _, name = str(called.data).rpartition(".")
        functions = _functions(called) or [f for a in arguments for f in _functions(self.value(a))]
        if any(_generator(f) for f in functions):
            return True
        if called.kind == "function":
            return any_of([r for f in functions for r in _returned(f)])
        if called.kind == "builtin" or root in ("itertools", "functools", "collections"):
            if called.data in PURE or called.data in ("sum", "abs", "pow", "round", "divmod", "functools.reduce"):
                return name == "range" and not inside
            mine = any_of([r for f in functions for r in _returned(f)], False)
            return (not inside and name not in ("tuple", "next", "min", "max")) or mine or any_of(arguments, True) or name == "repeat"
        if called.kind == "lib":
            return root.partition(".")[0] not in ("math", "operator", "triton", "torch")
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in ("get", "pop", "items", "values", "keys", "setdefault"):
                return any_of([node.func.value, *arguments], True)
            return name not in MAKES_NUMBER or name == "tolist"
        return True

    def _plain_handed(self, called: Value) -> bool:
        """What the callable returns is plain, where what it is given is."""
        if called.kind == "function":
            return all(isinstance(f, Function) and ("result", id(f)) not in self.mixed for f in called.data)
        return called.kind in ("builtin", "lib", "class", "none")

    def _given(self, parameter: ast.arg) -> list[tuple[ast.Call, ast.AST]]:
        """(call, expression) of what calls in the candidate hand to a parameter."""
        function, found = parameter.function, []
        a = function.args
        positional = [*a.posonlyargs, *a.args]
        for call, skipped in self.calls.get(id(function), ()):
            loose = [x for x in call.args if isinstance(x, ast.Starred)] + [k.value for k in call.keywords if k.arg is None]
            if parameter is a.vararg or parameter is a.kwarg or loose:
                found += [(call, x) for x in (*call.args, *(k.value for k in call.keywords))]
                continue
            place = positional.index(parameter) - skipped if parameter in positional else -1
            if 0 <= place < len(call.args):
                found.append((call, call.args[place]))
            found += [(call, k.value) for k in call.keywords if k.arg == parameter.arg]
        return found

    def _plain_parameter(self, parameter: ast.arg) -> bool:
        function = parameter.function
        name, method = getattr(function, "name", ""), _method(function)
        if method and not _static(function) and parameter is [*function.args.posonlyargs, *function.args.args][0]:
            tuples = any(self.value(b) == Value("lib", "typing.NamedTuple") for c in self.ancestors(method) for b in c.bases)
            return not tuples or all(self._made_plainly(c) for c in self.classes if method in self.ancestors(c))
        if method and name == "__post_init__":
            return False
        if method and name == "__init__" and method.name == "ModelNew":
            return True
        if (method and name in MODULE_METHODS) or not self.followed(function):
            return False
        a = function.args
        positional = [*a.posonlyargs, *a.args]
        defaults = dict(zip(reversed(positional), reversed(a.defaults))) | dict(zip(a.kwonlyargs, a.kw_defaults))  # noqa: B905
        return self.plain(defaults.get(parameter)) and all(self.plain(given) for _, given in self._given(parameter))

    def _made_plainly(self, node: ast.ClassDef) -> bool:
        """No tensor is given to the fields of an instance."""
        given = [a for c in self.made.get(id(node), ()) for a in (*c.args, *(k.value for k in c.keywords))]
        given += [k.value for c in self.replaced for k in c.keywords]
        return all(map(self.plain, given)) and self.followed(node)

    def ancestors(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """A class and the candidate's own classes that it is derived from."""
        found, todo = [], [node]
        while todo:
            current = todo.pop()
            if current not in found:
                found.append(current)
                todo += [c for b in current.bases if (v := self.value(b)).kind == "class" for c in v.data]
        return found

    def _inits(self, classes: list[ast.ClassDef]) -> list[ast.FunctionDef]:
        return [f for c in classes for f in c.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]

    def _find_uses(self) -> None:
        """Where every function is called, where instances of every class are made, and where both are handed on."""
        self.calls: dict[int, list[tuple[ast.Call, int]]] = {}
        self.made: dict[int, list[ast.Call]] = {}
        self.handed: dict[int, list[ast.AST]] = {}
        self.replaced = [c for c in self.nodes if isinstance(c, ast.Call) and self.value(c.func) == Value("lib", "dataclasses.replace")]
        for node in self.nodes:
            if isinstance(node, ast.Call):
                for target, skipped in self._called(node):
                    if isinstance(target, ast.ClassDef):
                        self.made.setdefault(id(target), []).append(node)
                        for init in self._inits(self.ancestors(target)):
                            self.calls.setdefault(id(init), []).append((node, 1))
                    else:
                        self.calls.setdefault(id(target), []).append((node, skipped))
            if isinstance(node, ast.Name | ast.Attribute | ast.Lambda) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                value = self.value(node)
                followed = isinstance(
                    node.up,
                    ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.Return | ast.Dict | ast.Tuple | ast.List | ast.IfExp | ast.BoolOp,
                )
                harmless = isinstance(node.up, ast.ClassDef | ast.Attribute | ast.arg | ast.keyword) if value.kind == "class" else False
                harmless = harmless or (
                    isinstance(node.up, ast.Call) and (node.up.func is node or _spelled(node.up.func) in ("isinstance", "super"))
                )
                if value.kind in ("function", "class") and not followed and not harmless:
                    for target in [t for t in value.data if t is not KERNEL]:
                        for handed in (target, *(self._inits(self.ancestors(target)) if isinstance(target, ast.ClassDef) else ())):
                            self.handed.setdefault(id(handed), []).append(node)

    def _called(self, call: ast.Call) -> list[tuple[ast.AST, int]]:
        """Functions and classes that a call may reach, and how many parameters are filled by the object it is called on."""
        value, func = self.value(call.func), call.func
        if isinstance(func, ast.Attribute) and func.attr == "__init__":
            return [(f, 1) for f in self._inits(self.classes)]
        found = [n for n in value.data if n is not KERNEL] if value.kind in ("function", "class") else []
        if self.applied(call):
            return [(f, 0) for f in _functions(self.value(call.args[0]))]
        if not isinstance(func, ast.Attribute) or value.kind == "lib":
            return [(f, 0) for f in found]
        if self.own_object(func.value):
            # A function kept on an object is bound where its class keeps it, and not where the instance does
            return [(f, int(not _static(f))) for f in found] + [(f, 0) for f in found if _method(f) is None]
        # What the object is, is not known: it may be one of the candidate's own
        found += [b.node for b in self.attributes.get(func.attr, ()) if b.how in ("def", "class") and b.node not in found]
        base = self.value(func.value)
        return [(f, int(base.kind != "class" and self._key(func) == ("attribute", func.attr) and not _static(f))) for f in found]

    def applied(self, call: ast.AST) -> bool:
        """MODULE.apply(function), of torch: calls the function with every module."""
        named = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "apply"
            and "apply" not in self.attributes
        )
        return named and len(call.args) == 1 and not call.keywords

    def followed(self, function: Function | ast.ClassDef) -> bool:
        """All that is ever handed to the function is known, or comes from where only numbers come from."""
        if function in [f for f in self.functions if isinstance(f, ast.Lambda)] and self._in_heuristics(function):
            return _pure(function)
        for node in self.handed.get(id(function), ()):
            up = node.up
            if isinstance(up, ast.Subscript) and up.slice is node and self.value(up.value).kind == "jit":
                if not _pure(function):
                    return False
            elif isinstance(up, ast.Call | ast.keyword):
                call = up if isinstance(up, ast.Call) else up.up
                others = [x for x in (*call.args, *(k.value for k in call.keywords)) if x is not node]
                name = self.value(call.func).data
                if (
                    not isinstance(call, ast.Call)
                    or name not in CALLERS | KEYWORD_CALLERS
                    or name == "functools.partial"
                    or not all(map(self.plain, others))
                    or (name in ("functools.reduce", "itertools.accumulate") and ("result", id(function)) in self.mixed)
                ):
                    return False
            else:
                return False
        return True

    def _in_heuristics(self, node: ast.AST) -> bool:
        while (node := getattr(node, "up", None)) is not None and isinstance(node, ast.expr | ast.keyword):
            if isinstance(node, ast.Call):
                return self.value(node.func).data in ("triton.heuristics", "triton.autotune")
        return False


def _functions(value: Value) -> list[Function]:
    return [f for f in value.data if isinstance(f, Function)] if value.kind == "function" else []


def _plain_library(full: str) -> bool:
    root, _, rest = full.partition(".")
    return (
        (root == "torch" and rest in PLAIN)
        or full in ("math.pi", "math.e", "math.inf", "math.nan", "math.tau")
        or (root == "cupy" and rest in CUPY - CUPY_ARRAYS)
    )


def _enclosing(scope: Scope) -> Scope:
    """The function that a nonlocal name belongs to, where only one function is around."""
    around = []
    while scope is not None:
        around += [scope] if isinstance(scope.node, ast.FunctionDef) else []
        scope = scope.parent
    if len(around) != 1:
        raise reject("introspection", "nonlocal deeper than in one function of another")
    return around[0]


def _registered(call: ast.Call) -> str | None:
    """The constant name under which a call registers a buffer or parameter."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in REGISTERS:
        return None
    name = next((k.value for k in call.keywords if k.arg == "name"), call.args[0] if call.args else None)
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function's own body, not of functions in it."""
    todo = list(function.body) if isinstance(function.body, list) else [function.body]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.GeneratorExp):
            todo += ast.iter_child_nodes(node)


def _returned(function: Function) -> list[ast.AST | None]:
    if isinstance(function, ast.Lambda):
        return [function.body]
    return [n.value for n in _own_nodes(function) if isinstance(n, ast.Return)]


def _generator(function: Function) -> bool:
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for n in _own_nodes(function))


def _pure(function: Function) -> bool:
    """One expression, no assignment, no method called in it."""
    if isinstance(function, ast.FunctionDef) and not all(isinstance(s, ast.Return) for s in function.body):
        return False
    inside = list(_own_nodes(function))
    methods = [n for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and _spelled(n.func) not in PURE_CALLS]
    return not methods and not any(isinstance(n, ast.NamedExpr) for n in inside)


def _spelled(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _method(function: ast.AST) -> ast.ClassDef | None:
    scope = function.scope
    return scope.node if isinstance(function, ast.FunctionDef) and scope.kind == "class" else None


def _static(function: ast.AST) -> bool:
    return any(_spelled(d) == "staticmethod" for d in getattr(function, "decorator_list", ()))


def _escapes(node: ast.AST) -> bool:
    """A load of a name from where a container may be changed by another name."""
    up = node.up
    if isinstance(up, ast.Subscript):
        return up.value is not node
    if isinstance(up, ast.Attribute | ast.Compare | ast.If | ast.While | ast.UnaryOp):
        return False
    if isinstance(up, ast.For | ast.comprehension):
        return up.iter is not node
    return not (isinstance(up, ast.Call) and _spelled(up.func) in ("len", "enumerate", "zip", "tuple", "list", "isinstance", "bool"))


class Rules:
    """The rules of the rewarded policies over a candidate's Python files. `check_inline(where, text)` reads C++ in string constants."""

    def __init__(self, trees: dict[str, ast.Module], check_inline: Callable[[str, str], None]):
        self.program, self.check_inline = Program(trees), check_inline
        self.main = next(n for n in self.program.files["model_new.py"].body if isinstance(n, ast.ClassDef) and n.name == "ModelNew")
        self.docstrings = {id(n.value) for n in self.program.nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        self.building = self._building()

    def run(self) -> None:
        """Raises Failed (rejected) at the first broken rule."""
        self._reserved()
        for node in self.program.nodes:
            self._anywhere(node)
        for node in self.program.nodes:
            place = self._place(node)
            if place == "device":
                self._device(node)
                continue
            if isinstance(node, ast.Call):
                self._handed(node)
                self._call(node, place == "building")
            if place == "forward":
                self._forward(node)
        if not self._launches():
            raise reject("no_kernel", "no kernel of the candidate's own is called")

    # ---- where code runs ----

    def _building(self) -> set[int]:
        """Functions that run only while the module is built: called from there alone, never handed on."""
        p, inside = self.program, {id(f) for f in self.program.functions if isinstance(f, ast.FunctionDef) and self._may_build(f)}
        named, made = self._named(), p.made
        while True:
            left = set()
            for function in [f for f in p.functions if id(f) in inside]:
                owner = _method(function)
                if function.name == "__init__" and owner is not None:
                    family = [c for c in p.classes if owner in p.ancestors(c)]
                    ok = not any(id(c) in named for c in family) and all(
                        self._is_building(n, inside) for c in family for n in made.get(id(c), ())
                    )
                else:
                    calls = [c for c, _ in p.calls.get(id(function), ())]
                    ok = bool(calls) and id(function) not in named and all(self._is_building(n, inside) for n in calls)
                if not ok:
                    left.add(id(function))
            if not left:
                return inside
            inside -= left

    def _may_build(self, function: ast.FunctionDef) -> bool:
        free = all(_spelled(d) in ("staticmethod", "classmethod") for d in function.decorator_list)
        return (
            free
            and (function.name == "__init__" or not function.name.startswith("__"))
            and function.name not in MODULE_METHODS
            and not _generator(function)
        )

    def _named(self) -> set[int]:
        """Functions and classes that are named without being called."""
        p, named = self.program, set()
        for node in p.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                up = node.up
                call = isinstance(up, ast.Call) and (up.func is node or _spelled(up.func) in ("super", "isinstance") or p.applied(up))
                if (
                    call
                    or isinstance(up, ast.ClassDef | ast.Attribute)
                    or (isinstance(up, ast.arg | ast.AnnAssign) and getattr(up, "annotation", None) is node)
                ):
                    continue
                value = p.value(node)
                named |= {id(n) for n in value.data if n is not KERNEL} if value.kind in ("function", "class") else set()
        return named

    def _is_building(self, node: ast.AST, inside: set[int]) -> bool:
        scope = node.scope
        while scope is not None:
            if scope.kind == "function" and not isinstance(scope.node, ast.ListComp | ast.SetComp | ast.DictComp):
                return id(scope.node) in inside
            scope = scope.parent
        return True

    def _place(self, node: ast.AST) -> str:
        scope = node.scope
        while scope is not None:
            if isinstance(scope.node, ast.FunctionDef) and self.program.is_jit(scope.node):
                return "device"
            scope = scope.parent
        return "building" if self._is_building(node, self.building) else "forward"

    def _launches(self) -> bool:
        """Some function that forward reaches, by name, calls a kernel."""
        p, todo, reached = self.program, ["forward"], set()
        by_name: dict[str, list] = {}
        for node in p.nodes:
            holder = node.scope
            while holder is not None and not isinstance(holder.node, ast.FunctionDef):
                holder = holder.parent
            by_name.setdefault(holder.node.name if holder else "", []).append(node)
        while todo:
            name = todo.pop()
            if name in reached:
                continue
            reached.add(name)
            for node in by_name.get(name, ()):
                if isinstance(node, ast.Call):
                    handed = (
                        node.args[CALLERS[f]] if (f := p.value(node.func).data) in CALLERS and len(node.args) > CALLERS[f] else node.func
                    )
                    value = p.value(handed)
                    if value == KERNEL or (value.kind == "function" and KERNEL in value.data):
                        return True
                if isinstance(node, ast.Name | ast.Attribute):
                    value = p.value(node)
                    todo += [
                        node.id if isinstance(node, ast.Name) else node.attr,
                        *(f.name for f in _functions(value) if isinstance(f, ast.FunctionDef)),
                    ]
                    todo += ["__init__"] if value.kind == "class" else []
        return False

    # ---- rules for all code ----

    def _reserved(self) -> None:
        for scope in self.program.scopes.values():
            for name in RESERVED & scope.names.keys():
                if any(b != Binding("import", f"functools.{name}") for b in scope.names[name]):
                    raise reject("patch", f"{scope.file}: {name} is bound to something else")
        for module, scope in self.program.modules.items():
            for name in scope.names:
                if f"{module}.{name}" in self.program.modules and any(
                    b != Binding("import", f"{module}.{name}") for b in scope.names[name]
                ):
                    raise reject("import", f"{scope.file}: {name} is the name of a module too")
        for scope in self.program.scopes.values():
            for name, bindings in scope.names.items():
                own = [b for b in bindings if b.how == "import" and self.program.sidecar(b.node)[0] is not None]
                if own and {b for b in bindings if b.how != "none"} != {own[0]}:
                    raise reject("patch", f"{scope.file}: {name} is imported and bound to something else")
        spelled = {n.attr for n in self.program.nodes if isinstance(n, ast.Attribute)}
        spelled |= {a.name for n in self.program.nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
        if "Sequential" in spelled and spelled & {"OrderedDict", "state_dict"}:
            raise reject("introspection", "nn.Sequential beside an OrderedDict: modules with names that cannot be followed")

    def _where(self, node: ast.AST) -> str:
        return f"{node.scope.file}:{getattr(node, 'lineno', 0)}"

    def _anywhere(self, node: ast.AST) -> None:
        where = self._where(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, where)
        elif isinstance(node, ast.Name):
            self._name(node, where)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, where)
        elif isinstance(node, ast.ClassDef):
            self._class(node, where)
        elif isinstance(node, ast.FunctionDef):
            self._definition(node, where)
        elif isinstance(node, ast.Call):
            name = self.program.value(node.func)
            constant = len(node.args) == 2 and isinstance(node.args[1], ast.Constant) and not node.keywords
            if name == Value("builtin", "getattr") or (name == Value("builtin", "hasattr") and not constant):
                raise reject("introspection", f"{where}: {name.data} with a computed name")
        elif isinstance(node, ast.Try):
            for handler in node.handlers:
                inside = list(ast.walk(handler))
                if any(isinstance(n, ast.Call) for n in inside) and not any(isinstance(n, ast.Raise) for n in inside):
                    raise reject("fallback", f"{where}: a handler that goes on by another way")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in self.docstrings:
            if any(mark in node.value for mark in ("#include", "torch::", "at::", "c10::", "__global__", 'extern "C"')):
                self.check_inline(where, node.value)
        elif (
            isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith | ast.TryStar)
            or type(node).__name__ == "TypeAlias"
        ):
            raise reject("introspection", f"{where}: {type(node).__name__} has no place in a candidate")
        elif isinstance(node, ast.Global | ast.Nonlocal) and node.scope.kind == "class":
            raise reject("introspection", f"{where}: global in a class body")
        elif (
            isinstance(node, ast.Subscript)
            and not isinstance(node.ctx, ast.Load)
            and self.program.value(node.value).kind in ("lib", "builtin", "class")
        ):
            raise reject("patch", f"{where}: a store into {ast.unparse(node.value)}")

    def _import(self, node: ast.Import | ast.ImportFrom, where: str) -> None:
        parts = [name.split(".") for name in self.program.modules if name.partition(".")[0] not in _ROOTS]
        local = {".".join(p[:n]) for p in parts for n in range(1, len(p) + 1)}
        relative = isinstance(node, ast.ImportFrom) and (node.level or any(a.name == "*" for a in node.names))
        for module in [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or "."]:
            if relative or (module not in IMPORTS and module not in local):
                raise reject("import", f"{where}: import of {module}, wanted only names out of {', '.join(sorted(IMPORTS))}")
            if module in local and node.scope.kind != "module":
                raise reject("import", f"{where}: import of {module} inside a function or class: its body would run late")
        for alias in node.names:
            full = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            self._full(full, where)

    def _name(self, node: ast.Name, where: str) -> None:
        builtin = self.program.resolve(node.id, node.scope) is None
        known = not builtin and all(b.how == "def" for b in self.program.variables[self.program._key(node)])
        if node.id in NAMES and not known:
            raise reject("introspection", f"{where}: {node.id} has no place in a candidate")
        if node.id.startswith("__") and node.id not in ("__name__", "__file__", "__all__"):
            raise reject("introspection", f"{where}: {node.id} has no place in a candidate")
        self._own_module(node, where)
        if isinstance(node.ctx, ast.Load):
            scope = self.program.resolve(node.id, node.scope)
            if scope is not None and scope.kind == "class" and any(b.how == "def" and not _static(b.node) for b in scope.names[node.id]):
                raise reject("introspection", f"{where}: method {node.id} is named in the body of its class")
            return
        bindings = self.program.variables[("name", id(self.program.resolve(node.id, node.scope)), node.id)]
        absent = all(isinstance(b.node, ast.Constant) and b.node.value is None for b in bindings if b.how != "import")
        if any(b.how == "import" for b in bindings) and not absent:
            raise reject("patch", f"{where}: assignment to {node.id}, which was imported")
        if node.id in ("getattr", "hasattr", "super", "ModelNew"):
            raise reject("patch", f"{where}: assignment to {node.id}")

    def _own_module(self, node: ast.Name | ast.Attribute, where: str) -> None:
        """Names inside a module of the candidate's own are followed where they are spelled out only."""
        value = self.program.value(node)
        module, inside = self.program.sidecar(value.data) if value.kind == "lib" else (None, "")
        if module is not None and not inside and not (isinstance(node.up, ast.Attribute) and _spelled(node)):
            raise reject("introspection", f"{where}: module {value.data} is kept or handed on")

    def _full(self, full: str, where: str) -> None:
        """The full name of something of a library, wherever it is named."""
        parts = full.split(".")
        if parts[0] not in _ROOTS:
            return
        if parts[-1] in OPEN_NAMES:
            raise reject("introspection", f"{where}: {full}, wanted ModuleList, ParameterList or attributes")
        if parts[0] == "torch" and any(p in _INSIDE or p.startswith("_") for p in parts[1:]):
            raise reject("torch_op", f"{where}: {full}")
        if any(p in _STDLIB for p in parts[1:]):
            raise reject("introspection", f"{where}: {full}, a module behind a module")

    def _attribute(self, node: ast.Attribute, where: str) -> None:
        p, value = self.program, self.program.value(node)
        if node.attr.startswith("__") and node.attr not in ("__init__", "__name__"):
            raise reject("introspection", f"{where}: attribute {node.attr}")
        if "hook" in node.attr or node.attr in _MODULE_CHANGES or node.attr in PRIVATE:
            raise reject("torch_op", f"{where}: {ast.unparse(node)[:80]}")
        self._own_module(node, where)
        if node.attr in OPEN_NAMES:
            raise reject("introspection", f"{where}: {node.attr}, wanted ModuleList, ParameterList or attributes")
        called = isinstance(node.up, ast.Call) and node.up.func is node
        if node.attr in MUTATORS | REGISTERS | _CAPTURES and isinstance(node.ctx, ast.Load) and not called:
            raise reject("introspection", f"{where}: method {node.attr} is kept or handed on")
        if node.attr in REGISTERS and not _registered(node.up):
            raise reject("introspection", f"{where}: {node.attr} under a computed name")
        if value.kind == "lib":
            self._full(value.data, where)
        if node.attr == "__init__" and not self._constructs(node):
            raise reject("introspection", f"{where}: __init__ is called by another than a constructor")
        if isinstance(node.ctx, ast.Load):
            return
        if node.attr == "forward":
            raise reject("patch", f"{where}: assignment to forward")
        base = p.value(node.value)
        fits = p.own_object(node.value) or base.kind in ("kernel", "jit") or (base.kind in ("unknown", "none") and node.attr in _SETTABLE)
        if base.kind == "class" and node.scope.kind != "class":
            fits = bool(base.data) and all(isinstance(c, ast.ClassDef) for c in base.data)
        if not fits:
            raise reject("patch", f"{where}: assignment to {ast.unparse(node)[:80]}, which is not the candidate's own")

    def _constructs(self, node: ast.Attribute) -> bool:
        """super().__init__(...) or torch.nn.Module.__init__(self) in an __init__."""
        holder = node.scope.node
        inside = isinstance(holder, ast.FunctionDef) and holder.name == "__init__" and _method(holder) is not None
        called = isinstance(node.up, ast.Call) and node.up.func is node
        plain_super = isinstance(node.value, ast.Call) and self.program.value(node.value.func) == Value("builtin", "super")
        return inside and called and (plain_super or self.program.value(node.value) == Value("lib", "torch.nn.Module"))

    def _class(self, node: ast.ClassDef, where: str) -> None:
        if node.keywords or getattr(node, "type_params", None):
            raise reject("introspection", f"{where}: class {node.name} with a metaclass or other keywords")
        for base in node.bases:
            value = self.program.value(base)
            own = value.kind == "class" and value.data and all(isinstance(c, ast.ClassDef) for c in value.data)
            if not own and value.data not in BASES:
                raise reject(
                    "torch_op",
                    f"{where}: class {node.name} is derived from {ast.unparse(base)[:60]}, wanted nn.Module, object or an own class",
                )
        for decorator in node.decorator_list:
            self._decorator(decorator, where)
        for binding in self.program.variables.get(("name", id(node.inside), "forward"), ()):
            free = {"torch.no_grad", "torch.inference_mode"}
            if binding.how != "def" or any(_decorates(self.program, d) not in free for d in binding.node.decorator_list):
                raise reject("patch", f"{where}: forward of {node.name} is no plain method")
        if node.name == "ModelNew":
            if node is not self.main or node.decorator_list or len(self.program.variables[("name", id(node.scope), "ModelNew")]) != 1:
                raise reject("patch", f"{where}: ModelNew is bound more than once")
            if len(self.program.variables[("name", id(node.inside), "forward")]) != 1:
                raise reject("patch", f"{where}: forward is bound more than once")

    def _definition(self, node: ast.FunctionDef, where: str) -> None:
        if getattr(node, "type_params", None):
            raise reject("introspection", f"{where}: type parameters")
        if node.name.startswith("__") and node.name not in ("__init__", "__post_init__", "__repr__", "__str__"):
            raise reject("introspection", f"{where}: method {node.name}")
        if node.name in PRIVATE | {"getattr", "hasattr", "super", "ModelNew"} or node.name in _MODULE_CHANGES:
            raise reject("patch", f"{where}: a function named {node.name}")
        for decorator in node.decorator_list:
            self._decorator(decorator, where)

    def _decorator(self, node: ast.AST, where: str) -> None:
        if _decorates(self.program, node) not in DECORATORS:
            raise reject("introspection", f"{where}: decorator {ast.unparse(node)[:60]}, wanted only {', '.join(sorted(DECORATORS))}")

    # ---- calls ----

    def _handed(self, node: ast.Call) -> None:
        """What calls its arguments may be handed own functions and kernels, and arithmetic only where all else is numbers."""
        p, name = self.program, self.program.value(node.func).data
        if not isinstance(name, str):
            return
        handed = [node.args[CALLERS[name]]] if name in CALLERS and len(node.args) > CALLERS[name] else []
        handed += [
            k.value for k in node.keywords if k.arg == KEYWORD_CALLERS.get(name, "") or (name in CALLERS and k.arg in ("func", "function"))
        ]
        loose = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
        if loose and (name in CALLERS or name in KEYWORD_CALLERS):
            raise reject("torch_op", f"{self._where(node)}: {name} with unpacked arguments")
        others = [a for a in (*node.args, *(k.value for k in node.keywords)) if a not in handed]
        if (name == "itertools.count" or (name == "itertools.accumulate" and not handed)) and not all(map(p.plain, others)):
            raise reject("torch_op", f"{self._where(node)}: {name} adds what may be tensors")
        for function in handed:
            value = p.value(function)
            own = value.kind in CALLABLE and not (value.data and self.main in value.data)
            plain = value.kind == "builtin" and value.data in PURE | CARRIERS and value.data not in ("type", "iter")
            numbers = (value.kind == "builtin" and value.data in ARITHMETIC) or (value.kind == "lib" and _arithmetic(value.data))
            numbers = (
                numbers and name not in ("functools.partial", "collections.defaultdict", "dataclasses.field") and all(map(p.plain, others))
            )
            if not (own or plain or numbers or (isinstance(function, ast.Constant) and function.value is None)):
                raise reject(
                    "torch_op",
                    f"{self._where(node)}: {ast.unparse(function)[:60]} is handed to {name}, wanted a function or kernel of the candidate's own",
                )

    def _call(self, node: ast.Call, building: bool) -> None:
        value, where = self.program.value(node.func), self._where(node)
        if value.kind in ("kernel", "instance"):  # an own module's call is its forward, which stands under the same rules
            return
        if value.kind in ("function", "class"):
            if value.data and self.main in value.data:
                raise reject("introspection", f"{where}: ModelNew is made by itself")
            return
        if value.kind == "builtin":
            self._builtin(node, value.data, where, building)
        elif value.kind == "lib":
            self._library(node, value.data, where, building)
        elif isinstance(node.func, ast.Attribute):
            self._method(node, node.func, where, building)
        else:
            raise reject("torch_op", f"{where}: a call of {ast.unparse(node.func)[:60]}, which is not always an own kernel or function")

    def _builtin(self, node: ast.Call, name: str, where: str, building: bool) -> None:
        arguments = [*node.args, *(k.value for k in node.keywords if k.arg != "key")]
        if name == "type" and len(node.args) != 1:
            raise reject("introspection", f"{where}: type() makes a class")
        if name == "iter" and (len(node.args) != 1 or isinstance(node.args[0], ast.Starred)):
            raise reject("torch_op", f"{where}: iter() of what it calls")
        if name == "super":
            if not (isinstance(node.up, ast.Attribute) and (node.up.attr in ("__init__", "train") or self._inherited(node))):
                raise reject("torch_op", f"{where}: super() for what no class of the candidate's own defines")
        elif name in ARITHMETIC:
            if not building and not all(map(self.program.plain, arguments)):
                raise reject("torch_op", f"{where}: {name}() on what may be a tensor is torch's work")
        elif name not in PURE | CARRIERS | ERRORS | {"map", "filter", "object", "staticmethod", "classmethod", "property"}:
            raise reject("torch_op", f"{where}: a call of {name}, which is neither an own kernel nor plain Python")

    def _inherited(self, node: ast.Call) -> bool:
        """A class of the candidate's own, above the one that names super(), defines the method."""
        own = _method(node.scope.node) if isinstance(node.scope.node, ast.FunctionDef) else None
        above = self.program.ancestors(own)[1:] if own is not None and not node.args else []
        return any(getattr(n, "name", "") == node.up.attr for c in above for n in c.body)

    def _library(self, node: ast.Call, full: str, where: str, building: bool) -> None:
        root, _, rest = full.partition(".")
        if full in LOADERS:
            return
        if root == "torch":
            parent, _, last = full.rpartition(".")
            if rest in ALLOCATE or (parent == "torch.cuda" and last in CUDA and not (building and full in GRAPHS)):
                return
            if building and parent == "torch.nn" and last[:1].isupper() and last not in HOLD_TENSORS and not last.startswith("Transformer"):
                settings = [*node.args, *(k.value for k in node.keywords if k.arg not in ("weight", "pos_weight", "_weight"))]
                if not all(map(self.program.plain, settings)):
                    raise reject("torch_op", f"{where}: a setting of {full} may be a tensor")
            if (
                building
                and full not in GRAPHS
                and ((parent in BUILDING and last not in REACHES_OUT and parent != "torch.cuda") or full in WEIGHT_NORMS)
            ):
                return
            raise reject("torch_op", f"{where}: a call of {full}")
        if root == "cupy":
            if rest in CUPY:
                return
            raise reject("library_call", f"{where}: {full} is a library's work, not a kernel's")
        if root == "triton" and (rest in TRITON or rest.startswith("runtime.driver.active.") or rest == "language.constexpr"):
            numbers = rest in ("cdiv", "next_power_of_2")
        elif (root == "math" and not rest.startswith("_")) or (root == "operator" and rest in OPERATORS):
            numbers = True
        elif full in _PLUMBING or full in ("typing.cast", "typing.TypeVar"):
            numbers = False
            if full == "collections.namedtuple" and _fields(node) & TRUSTED:
                raise reject("introspection", f"{where}: fields of a namedtuple that are computed or named like what tensors have")
        else:
            raise reject("torch_op", f"{where}: a call of {full}, which is neither an own kernel nor plain Python")
        if numbers and not building and not all(map(self.program.plain, [*node.args, *(k.value for k in node.keywords)])):
            raise reject("torch_op", f"{where}: {full} on what may be a tensor is torch's work")

    def _method(self, node: ast.Call, func: ast.Attribute, where: str, building: bool) -> None:
        p = self.program
        own = p.own_object(func.value)
        if func.attr == "train" and own and isinstance(func.value, ast.Call) and p.value(func.value.func).data == "super":
            return
        if func.attr in p.attributes and not (own and building):
            safe = not own and (p.value_of(func.attr).kind in ("function", "kernel") or ("attribute", func.attr) not in p.mixed)
            given = [*node.args, *(k.value for k in node.keywords)]
            if not own and not all(map(p.plain, given)):
                raise reject(
                    "torch_op",
                    f"{where}: .{func.attr}() of what is not known, which may be the candidate's own, is given what may be a tensor",
                )
            if not safe:
                raise reject("torch_op", f"{where}: a call of {ast.unparse(func)[:60]}, which is not always a method or an own kernel")
        if building:
            if func.attr in _CAPTURES:
                raise reject("torch_op", f"{where}: a graph is captured outside forward")
            if not own and (func.attr[:1].isupper() or func.attr == "namedtuple"):
                raise reject("torch_op", f"{where}: a call of {ast.unparse(func)[:60]}, which is not always the same")
            return
        if func.attr not in METHODS:
            what = "is neither a method nor an own kernel" if own else "neither allocates, views nor copies"
            raise reject("torch_op", f"{where}: a call of {ast.unparse(func)[:60] if own else '.' + func.attr}(), which {what}")

    # ---- rules for what runs in forward, and on the device ----

    def _forward(self, node: ast.AST) -> None:
        p, where = self.program, self._where(node)
        if isinstance(node, ast.BinOp | ast.AugAssign):
            sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
            if isinstance(node.op, ast.MatMult) or not all(map(p.plain, sides)):
                raise reject("torch_op", f"{where}: an arithmetic operator on what may be a tensor is torch's work")
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not) and not p.plain(node.operand):
            raise reject("torch_op", f"{where}: an operator on what may be a tensor is torch's work")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
            if not (p.plain(node.left) and (p.plain(node.comparators[0]) or p.container(node.comparators[0]))):
                raise reject("torch_op", f"{where}: a search in what may be a tensor is torch's work")
        elif isinstance(node, ast.Compare) and not all(isinstance(o, ast.Is | ast.IsNot) for o in node.ops):
            if not all(map(p.plain, (node.left, *node.comparators))):
                raise reject("torch_op", f"{where}: a comparison of what may be tensors is torch's work")
        elif isinstance(node, ast.Subscript) and p.value(node.value).kind not in ("jit", "of", "lib"):
            for index in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
                if not p.plain(index) or p.lists(index):
                    raise reject("torch_op", f"{where}: indexing by a list or by what may be a tensor is torch's work")
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            up = node.up
            if isinstance(up, ast.Attribute | ast.Assign | ast.NamedExpr) or (isinstance(up, ast.Call) and up.func is node):
                return
            value = p.value(node)
            root, *rest = str(value.data).split(".") if value.kind == "lib" else [""]
            library = (root == "torch" and rest and rest[0] not in PLAIN) or (root == "cupy" and rest and ".".join(rest) not in CUPY)
            if library or (root == "torch" and len(rest) > 1 and rest[0] == "nn" and rest[1] != "Module"):
                raise reject("torch_op", f"{where}: {value.data} is handed on")

    def _device(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name | ast.Attribute):
            value = self.program.value(node)
            root = str(value.data).partition(".")[0] if value.kind == "lib" else ""
            if root in ("torch", "cupy") or value.kind in ("module", "raw") or value == KERNEL:
                raise reject("torch_op", f"{self._where(node)}: {ast.unparse(node)[:60]} in a Triton kernel")


def _fields(call: ast.Call) -> set[str]:
    """Names of the fields of collections.namedtuple(...); where they cannot be read, all that tensors have."""
    try:
        fields = ast.literal_eval(call.args[1])
        return set(fields.replace(",", " ").split() if isinstance(fields, str) else fields)
    except (ValueError, IndexError, TypeError):
        return TRUSTED


def _decorates(program: Program, node: ast.AST) -> str | None:
    value = program.value(node.func if isinstance(node, ast.Call) else node)
    return value.data if value.kind in ("lib", "builtin") else None


def _arithmetic(full: str) -> bool:
    root, _, name = full.partition(".")
    return root == "math" or (root == "operator" and name in OPERATORS)


_ROOTS = {name.partition(".")[0] for name in IMPORTS}
_INSIDE = {
    "ops", "jit", "compile", "autograd", "classes", "library", "fx", "overrides", "multiprocessing", "distributed", "export", "func", "package", "hub",
}  # fmt: skip
_STDLIB = sys.stdlib_module_names - {"select", "random", "signal", "operator", "typing"}
_MODULE_CHANGES = {"add_module", "register_module", "compile", "register_parametrization", "parametrize", "parametrizations", "__call__"}
_SETTABLE = {"weight", "bias", "data", "requires_grad"}
_CAPTURES = {"capture_begin", "begin_capture", "make_graphed_callables"}
_PLUMBING = {
    "functools.reduce", "functools.partial", "functools.lru_cache", "functools.cache", "collections.namedtuple", "collections.OrderedDict",
    "collections.defaultdict", "collections.deque", "dataclasses.dataclass", "dataclasses.field", "dataclasses.replace",
    "itertools.chain.from_iterable", *(f"itertools.{name}" for name in ITERTOOLS),
}  # fmt: skip
TRUSTED = METHODS | FACTS | SETTINGS | MAKES_NUMBER
PRIVATE = {
    "_apply", "_backward_hooks", "_backward_pre_hooks", "_buffers", "_call_impl", "_compiled_call_impl", "_forward_hooks",
    "_forward_hooks_always_called", "_forward_hooks_with_kwargs", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_get_backward_hooks", "_get_backward_pre_hooks", "_get_name", "_is_full_backward_hook", "_load_from_state_dict",
    "_load_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_maybe_warn_non_full_backward_hook", "_modules", "_named_members",
    "_non_persistent_buffers_set", "_parameters", "_register_load_state_dict_pre_hook", "_register_state_dict_hook",
    "_replicate_for_data_parallel", "_save_to_state_dict", "_slow_forward", "_state_dict_hooks", "_state_dict_pre_hooks", "_version",
    "_wrapped_call_impl",
}  # fmt: skip
"""What torch.nn.Module keeps for itself."""


def _module(file: str) -> str:
    return file[:-3].replace("/", ".").removesuffix(".__init__")


def check(trees: dict[str, ast.Module], check_inline: Callable[[str, str], None]) -> None:
    """Trees by file name; model_new.py has a class ModelNew with a forward. Raises Failed (rejected, format_error)."""
    for name in trees:
        root = _module(name).partition(".")[0]
        if root in _ROOTS | sys.stdlib_module_names:
            raise reject("import", f"{name}: a file named like the module {root}")
        if sum(_module(other) == _module(name) for other in trees) > 1:
            raise reject("import", f"{name}: two files for the module {_module(name)}")
    if sum(1 for tree in trees.values() for _ in ast.walk(tree)) > MAX_NODES:
        raise reject("introspection", f"the Python of a candidate has more than {MAX_NODES} nodes")
    try:
        Rules(trees, check_inline).run()
    except RecursionError:
        raise Failed(Status.FORMAT_ERROR, "expressions are nested too deeply") from None
