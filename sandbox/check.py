"""Static check: formats, policy, tripwires. It explains itself and refuses early; it is never what security rests on.

Policy works by allow-list: what runs in forward may allocate, view, copy and call own kernels, nothing else. `mixed` asks for
the format only.
"""

from __future__ import annotations

import ast
import re

from data.records import Candidate, Status
from sandbox.backends import Failed
from sandbox.build import strip_comments

IMPORTS = {
    "__future__", "torch", "torch.nn", "torch.nn.functional", "torch.utils", "torch.utils.cpp_extension", "math", "typing", "cuda_extension", "functools",
    "itertools", "collections", "dataclasses", "triton", "triton.language", "cupy",
}  # fmt: skip
NAMES = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "globals",
    "locals",
    "vars",
    "open",
    "input",
    "breakpoint",
    "setattr",
    "delattr",
    "__builtins__",
    "memoryview",
}
ALLOCATE = {
    "empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "Size", "device", "no_grad", "inference_mode",
    "is_tensor", "is_floating_point", "get_num_threads", "finfo", "iinfo",
}  # fmt: skip
METHODS = {
    "size", "stride", "numel", "dim", "ndimension", "data_ptr", "element_size", "storage_offset", "is_contiguous", "nelement", "contiguous", "clone", "copy_",
    "view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "permute", "transpose", "t", "narrow", "select",
    "detach", "requires_grad_", "new_empty", "new_zeros", "new_empty_strided", "zero_", "fill_", "to", "float", "double", "half", "bfloat16", "int", "long",
    "type", "cpu", "cuda", "is_floating_point", "dim_order", "movedim", "as_strided", "unfold", "item", "tolist", "get", "append", "items", "keys", "values",
    "index", "extend", "format", "join", "setdefault", "update", "pop", "named_parameters", "parameters",
}  # fmt: skip
"""Tensor methods that allocate, view, convert or copy, and methods of plain containers."""
BUILTINS = {
    "len", "int", "float", "bool", "str", "tuple", "list", "dict", "set", "range", "enumerate", "zip", "min", "max", "isinstance", "getattr", "hasattr", "print",
    "super", "ValueError", "TypeError", "RuntimeError", "NotImplementedError", "AssertionError", "id", "type", "sorted", "reversed", "any", "all", "repr", "slice",
}  # fmt: skip
MAKES_TENSOR = {"empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like"}
MAKES_NUMBER = {"size", "stride", "numel", "dim", "data_ptr", "element_size", "item", "tolist", "is_contiguous", "nelement", "storage_offset"}
ON_TENSORS = {"abs", "sum", "pow", "round", "divmod", "min", "max", "sorted", "any", "all"}
"""Builtins that become torch operators when handed a tensor."""
LOADERS = {
    "torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline", "cupy.RawKernel", "cupy.RawModule", "cupy.ElementwiseKernel",
    "cupy.ReductionKernel",
}  # fmt: skip
"""What builds kernels of the candidate's own, by full name."""
CUPY_ARRAYS = {"asarray", "from_dlpack", "empty", "empty_like"}
CUPY = {
    "RawKernel", "RawModule", "ElementwiseKernel", "ReductionKernel", "cuda.ExternalStream", "cuda.Stream", "cuda.Device", "cuda.get_current_stream",
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool_", "intp",
} | CUPY_ARRAYS  # fmt: skip
"""Of CuPy: own kernels, streams, views and scalars of a launch; its other array functions are a library's work."""
CUDA = {
    "current_stream", "default_stream", "Stream", "stream", "Event", "device", "current_device", "get_device_properties", "get_device_capability", "synchronize",
    "is_available", "CUDAGraph", "graph",
}  # fmt: skip
"""Of torch.cuda: streams, events, graphs and facts."""
PLAIN = {
    "Tensor", "Size", "dtype", "device", "strided", "contiguous_format", "channels_last", "channels_last_3d", "preserve_format", "inf", "nan", "pi", "e", "float",
    "float16", "float32", "float64", "half", "double", "bfloat16", "int", "long", "short", "int8", "uint8", "int16", "int32", "int64", "bool", "nn", "cuda",
}  # fmt: skip
"""Of torch: what may be named without being called."""
CPP_TOKENS = {
    "process": r"(?<![.>\w])(fork|vfork|execve?[lvpe]*|system|popen|posix_spawnp?|clone3?|daemon|wait(pid|id)?|kill|tgkill|raise|ptrace|prctl|sigaction|signal|setitimer|timer_create|syscall|process_vm_\w+)\s*\(",
    "loader": r"(?<![.>\w])(dlopen|dlsym|dlmopen|dl_iterate_phdr|mprotect|LD_PRELOAD)\b",
    "files": r"((?<![.>\w])(fopen|freopen|open|openat|socket|connect|sendto|sendmsg|ifstream|ofstream|fstream|mmap|memfd_create|shm_open)\s*[({<]|/proc\b|\.incbin\b)",
    "python": r"\b(Py_\w+|PyObject|PyRun_\w+|PyEval_\w+)\b",
}
LIBRARY_TOKENS = r"\b(cblas_\w+|mkl_\w+|dnnl\w*|sgemm_?|dgemm_?|Eigen)\b|#\s*include\s*[<\"](ATen|torch|c10|cblas|mkl|dnnl|Eigen)"
TORCH_CPP_ALLOWED = {
    "Tensor", "empty", "empty_like", "zeros", "zeros_like", "TensorOptions", "kFloat", "kFloat32", "kDouble", "kHalf", "kBFloat16", "kInt", "kLong", "kBool", "kCPU",
    "kCUDA", "ScalarType", "IntArrayRef", "MemoryFormat", "Device", "dtype", "device", "parallel_for", "get_num_threads", "Half", "BFloat16", "optional", "cuda",
    "ArrayRef", "TensorAccessor", "NoGradGuard", "vec",
}  # fmt: skip


def reject(rule: str, reason: str) -> Failed:
    return Failed(Status.REJECTED, reason, rule=rule)


def check_candidate(candidate: Candidate, *, policy: str, backend: str = "cpp") -> None:
    """Raises Failed: format_error (not Python, no ModelNew) or rejected (`rule` names what was broken)."""
    if "model_new.py" not in candidate.files:
        raise Failed(Status.FORMAT_ERROR, f"got files {sorted(candidate.files)}, wanted model_new.py")
    trees = {}
    for name, text in candidate.files.items():
        if name.endswith(".py"):
            try:
                trees[name] = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise Failed(Status.FORMAT_ERROR, f"{name} is not Python: {error}") from None
    main = next((n for n in trees["model_new.py"].body if isinstance(n, ast.ClassDef) and n.name == "ModelNew"), None)
    if main is None:
        raise Failed(Status.FORMAT_ERROR, "model_new.py defines no class ModelNew")
    if not any(isinstance(n, ast.FunctionDef) and n.name == "forward" for n in main.body):
        raise Failed(Status.FORMAT_ERROR, "ModelNew has no method forward")
    if policy == "mixed":
        return
    local = {name[:-3].replace("/", ".") for name in trees}
    for name, tree in trees.items():
        _Rules(name, tree, local).run()
    for name, text in candidate.files.items():
        if not name.endswith((".py", ".json")):
            check_cpp(name, text)
    if not any(_calls_kernel(tree) for tree in trees.values()):
        raise reject("no_kernel", "no kernel of the candidate's own is called")


def check_cpp(name: str, source: str) -> None:
    """Tokens of a C or C++ source. Raises Failed."""
    text = strip_comments(source)
    for rule, pattern in CPP_TOKENS.items():
        if found := re.search(pattern, text):
            raise reject(rule, f"{name}: {found.group().strip()!r} has no place in a kernel")
    if name.endswith((".cpp", ".cc", ".cxx", ".h", ".hpp", ".inl")) and (found := re.search(LIBRARY_TOKENS, text)):
        raise reject("library_call", f"{name}: {found.group()!r} is a library's work, not a kernel's")


def check_inline(name: str, source: str) -> None:
    """Tokens of C++ inside a load_inline string: torch's headers are there, its operators may not be called. Raises Failed."""
    text = strip_comments(source)
    for rule, pattern in CPP_TOKENS.items():
        if found := re.search(pattern, text):
            raise reject(rule, f"{name}: {found.group().strip()!r} has no place in a kernel")
    for called in re.findall(r"\b(?:at|torch)\s*::\s*(\w+)", text):
        if called not in TORCH_CPP_ALLOWED:
            raise reject("library_call", f"{name}: C++ calls torch::{called}")


def _dotted(node: ast.AST) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _imports(tree: ast.AST) -> dict[str, str]:
    """Name in the file -> full name of what was imported under it."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return found


def _full(node: ast.AST, imported: dict[str, str]) -> str:
    """Dotted name with its first part as it was imported; "" for anything else."""
    first, _, rest = (_dotted(node) or "").partition(".")
    full = imported.get(first, first)
    return f"{full}.{rest}" if rest else full


def _is_loader(node: ast.AST, imported: dict[str, str], names: frozenset | set = frozenset()) -> bool:
    """A call that builds kernels, or that takes one out of a module: RawModule(...).get_function("name")."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get_function":
        return _is_loader(node.func.value, imported, names) or (_dotted(node.func.value) or "") in names
    return _full(node.func, imported) in LOADERS


def _is_jit(function: ast.AST, imported: dict[str, str]) -> bool:
    """A Triton kernel: device code, not what runs in forward."""
    decorators = [d.func if isinstance(d, ast.Call) else d for d in getattr(function, "decorator_list", ())]
    return any(_full(d, imported) == "triton.jit" for d in decorators)


def _kernel_names(tree: ast.AST) -> set[str]:
    """Names and self attributes that hold a module or kernel the candidate built. What a kernel returns is none."""
    imported = _imports(tree)
    names = {name for name, full in imported.items() if full.split(".")[0] == "cuda_extension"}
    names |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and _is_jit(n, imported)}
    changed = True
    while changed:
        before = len(names)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                base = _dotted(node.value) or ""
                if _is_loader(node.value, imported, names) or (base and (base in names or base.rpartition(".")[0] in names)):
                    names |= {d for t in node.targets if (d := _dotted(t))}
        changed = len(names) > before
    return names


def _calls_kernel(tree: ast.AST) -> bool:
    names, imported = _kernel_names(tree), _imports(tree)
    return any(isinstance(n, ast.Call) and not _is_loader(n, imported, names) and _own_kernel(n.func, names) for n in ast.walk(tree))


def _own_kernel(func: ast.AST, names: set[str]) -> bool:
    if isinstance(func, ast.Subscript):
        func = func.value
    dotted = _dotted(func)
    return dotted is not None and (dotted in names or dotted.rpartition(".")[0] in names)


class _Rules:
    """One file's walk. Functions other than __init__ are taken to run in forward."""

    def __init__(self, name: str, tree: ast.Module, local: set[str]):
        self.name, self.tree, self.local = name, tree, local
        self.kernels = _kernel_names(tree)
        self.imported = _imports(tree)
        self.docstrings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        self.assigned = {
            d for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr)
            for t in (n.targets if isinstance(n, ast.Assign) else [n.target]) for e in ast.walk(t) if (d := _dotted(e))
        }  # fmt: skip
        self.defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)} - self.assigned
        self.methods = {
            f.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body
            if isinstance(f, ast.FunctionDef) and f"self.{f.name}" not in self.assigned
        }  # fmt: skip

    def run(self) -> None:
        for node in ast.walk(self.tree):
            self._anywhere(node)
        for function in [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]:
            if getattr(function, "name", "") != "__init__" and not _is_jit(function, self.imported):
                self._forward(function)

    def _anywhere(self, node: ast.AST) -> None:
        where = f"{self.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or "."]
            for module in modules:
                if module not in IMPORTS and module not in self.local:
                    raise reject("import", f"{where}: import of {module}, wanted only {', '.join(sorted(IMPORTS))}")
        if isinstance(node, ast.Name) and node.id in NAMES:
            raise reject("introspection", f"{where}: {node.id} has no place in a candidate")
        if isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr not in ("__init__", "__name__"):
            raise reject("introspection", f"{where}: attribute {node.attr}")
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node) or node.attr
            inside = node.attr in ("_C", "ops", "_dynamo", "jit", "compile", "autograd", "classes", "library") and dotted.startswith(
                "torch."
            )
            if "hook" in node.attr or inside:
                raise reject("torch_op", f"{where}: {dotted}")
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
            and not (len(node.args) > 1 and isinstance(node.args[1], ast.Constant))
        ):
            raise reject("introspection", f"{where}: getattr with a computed name")
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                dotted = _dotted(target) or ""
                if dotted.split(".")[0] in self.imported:
                    raise reject("patch", f"{where}: assignment to {dotted}, which was imported")
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                if any(isinstance(n, ast.Call) for n in ast.walk(handler) if not isinstance(n, ast.Raise)) and not any(
                    isinstance(n, ast.Raise) for n in ast.walk(handler)
                ):
                    raise reject("fallback", f"{where}: a handler that goes on by another way")
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in self.docstrings
            and ("#include" in node.value or "torch::" in node.value or "at::" in node.value)
        ):
            check_inline(where, node.value)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("__") and node.name not in ("__init__", "__post_init__", "__repr__"):
            raise reject("introspection", f"{where}: method {node.name}")

    def _forward(self, function) -> None:
        tensors = {a.arg for a in function.args.args + function.args.kwonlyargs if a.arg != "self" and not _is_number(a.annotation)}
        for _ in range(3):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and self._tensorish(node.value, tensors):
                    tensors |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in ast.walk(function):
            where = f"{self.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.BinOp | ast.AugAssign):
                sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
                if isinstance(node.op, ast.MatMult) or any(self._tensorish(side, tensors) for side in sides):
                    raise reject("torch_op", f"{where}: an arithmetic operator on a tensor is torch's work")
            if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not) and self._tensorish(node.operand, tensors):
                raise reject("torch_op", f"{where}: an operator on a tensor is torch's work")
            by_value = isinstance(node, ast.Compare) and not all(isinstance(o, ast.Is | ast.IsNot | ast.In | ast.NotIn) for o in node.ops)
            if by_value and any(self._tensorish(side, tensors) for side in (node.left, *node.comparators)):
                raise reject("torch_op", f"{where}: a comparison of tensors is torch's work")
            if isinstance(node, ast.Call):
                self._call(node, tensors, where)
        self._passed(function)

    def _passed(self, function) -> None:
        """Functions of torch and CuPy that are named without being called: handed to something that calls them."""
        inner = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Attribute)}
        inner |= {id(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
        for node in ast.walk(function):
            if id(node) in inner or not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            root, *rest = self._full(node).split(".")
            library = (root == "torch" and rest and rest[0] not in PLAIN) or (root == "cupy" and rest and ".".join(rest) not in CUPY)
            if library or (root == "torch" and len(rest) > 1 and rest[0] == "nn" and rest[1] != "Module"):
                raise reject("torch_op", f"{self.name}:{node.lineno}: {self._full(node)} is handed on")

    def _tensorish(self, node: ast.AST, tensors: set[str]) -> bool:
        if isinstance(node, ast.Name):
            return node.id in tensors
        if isinstance(node, ast.Subscript | ast.Starred):
            return self._tensorish(node.value, tensors)
        if isinstance(node, ast.Attribute):
            return node.attr in ("T", "mT", "data", "weight", "bias") or (
                node.attr in ("real", "H") and self._tensorish(node.value, tensors)
            )
        if isinstance(node, ast.IfExp):
            return self._tensorish(node.body, tensors) or self._tensorish(node.orelse, tensors)
        if isinstance(node, ast.Call) and _own_kernel(node.func, self.kernels):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            dotted = self._full(node.func)
            if dotted.startswith("torch."):
                return dotted.split(".")[1] in MAKES_TENSOR
            if dotted.startswith("cupy."):
                return dotted.split(".")[1] in CUPY_ARRAYS
            return node.func.attr in METHODS - MAKES_NUMBER and self._tensorish(node.func.value, tensors)
        return False

    def _full(self, node: ast.AST) -> str:
        return _full(node, self.imported)

    def _call(self, node: ast.Call, tensors: set[str], where: str) -> None:
        func = node.func
        if _own_kernel(func, self.kernels) or _is_loader(node, self.imported, self.kernels):
            return
        if isinstance(func, ast.Name):
            if func.id in ON_TENSORS and any(self._tensorish(a, tensors) for a in node.args):
                raise reject("torch_op", f"{where}: {func.id}() on a tensor is torch's work")
            if (
                (func.id in BUILTINS and func.id not in self.assigned)
                or func.id in self.defined
                or self._full(func).startswith(("math.", "typing.", "functools.", "collections.", "dataclasses.", "itertools."))
            ):
                return
            raise reject("torch_op", f"{where}: a call of {self._full(func)}, which is neither an own kernel nor plain Python")
        if isinstance(func, ast.Attribute):
            dotted = self._full(func)
            root = dotted.split(".")[0]
            if root == "torch":
                rest = dotted.split(".")[1:]
                if (rest[0] in ALLOCATE and len(rest) == 1) or (rest[0] == "cuda" and len(rest) == 2 and rest[1] in CUDA):
                    return
                raise reject("torch_op", f"{where}: a call of {dotted}")
            if root in ("math", "functools", "itertools", "collections", "dataclasses", "typing", "triton"):
                return
            if root == "cupy":
                if dotted.partition(".")[2] in CUPY:
                    return
                raise reject("library_call", f"{where}: {dotted} is a library's work, not a kernel's")
            if isinstance(func.value, ast.Name) and func.value.id == "self":
                if func.attr in self.methods or func.attr in ("register_buffer", "parameters", "named_parameters"):
                    return
                raise reject("torch_op", f"{where}: a call of self.{func.attr}, which is neither a method nor an own kernel")
            if func.attr in METHODS or (isinstance(func.value, ast.Call) and _dotted(func.value.func) == "super"):
                return
            raise reject("torch_op", f"{where}: a call of .{func.attr}(), which neither allocates, views nor copies")
        raise reject("torch_op", f"{where}: a call of something computed")


def _is_number(annotation: ast.AST | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id in ("int", "float", "bool", "str")
