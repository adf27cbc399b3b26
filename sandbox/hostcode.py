"""Rules for a candidate's Python: what runs in `forward` may allocate, view, copy and call own kernels, nothing else.

Proved, of all files of a candidate (sandbox/follow.py says how names are followed, sandbox/allowed.py lists the words):
- every call in forward and in what it reaches is an own kernel, an own function under the same rules, an allocation, view or copy, or
  plain Python on numbers; operators, comparisons and indices have no tensor beside them;
- code that runs only while the module is built (module level, `__init__` and what only these call) may use torch's layers, since no input is
  there yet, but keeps nothing that works later: no graph, hook, lazy iterator, attribute or method under a name that is not spelled out;
- some kernel of the candidate's own is called.

Refused because it cannot be read, honest or not: computed getattr, setattr, exec, metaclasses and most dunder methods, decorators and
imports off the list, modules and mutating methods kept or handed on, ModuleDict and ParameterDict, calls of what has several meanings,
nonlocal through two functions, own modules imported inside a function. Not read here: what C++ in strings does beyond its tokens (check.py).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

from data.records import Status
from sandbox import allowed
from sandbox.backends import Failed
from sandbox.follow import (
    CALLABLE,
    KERNEL,
    Binding,
    Program,
    Value,
    functions_of,
    generator,
    method_of,
    module_name,
    registered,
    reject,
    spelled_out,
    static,
)

MAX_NODES = 60_000


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
                owner = method_of(function)
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
        free = all(spelled_out(d) in ("staticmethod", "classmethod") for d in function.decorator_list)
        return (
            free
            and (function.name == "__init__" or not function.name.startswith("__"))
            and function.name not in allowed.MODULE_METHODS
            and not generator(function)
        )

    def _named(self) -> set[int]:
        """Functions and classes that are named without being called."""
        p, named = self.program, set()
        for node in p.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                up = node.up
                call = isinstance(up, ast.Call) and (up.func is node or spelled_out(up.func) in ("super", "isinstance") or p.applied(up))
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
                        node.args[allowed.CALLERS[f]]
                        if (f := p.value(node.func).data) in allowed.CALLERS and len(node.args) > allowed.CALLERS[f]
                        else node.func
                    )
                    value = p.value(handed)
                    if value == KERNEL or (value.kind == "function" and KERNEL in value.data):
                        return True
                if isinstance(node, ast.Name | ast.Attribute):
                    value = p.value(node)
                    todo += [
                        node.id if isinstance(node, ast.Name) else node.attr,
                        *(f.name for f in functions_of(value) if isinstance(f, ast.FunctionDef)),
                    ]
                    todo += ["__init__"] if value.kind == "class" else []
        return False

    # ---- rules for all code ----

    def _reserved(self) -> None:
        for scope in self.program.scopes.values():
            for name in allowed.RESERVED & scope.names.keys():
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
        parts = [name.split(".") for name in self.program.modules if name.partition(".")[0] not in allowed.ROOTS]
        local = {".".join(p[:n]) for p in parts for n in range(1, len(p) + 1)}
        relative = isinstance(node, ast.ImportFrom) and (node.level or any(a.name == "*" for a in node.names))
        for module in [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or "."]:
            if relative or (module not in allowed.IMPORTS and module not in local):
                raise reject("import", f"{where}: import of {module}, wanted only names out of {', '.join(sorted(allowed.IMPORTS))}")
            if module in local and node.scope.kind != "module":
                raise reject("import", f"{where}: import of {module} inside a function or class: its body would run late")
        for alias in node.names:
            full = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            self._full(full, where)

    def _name(self, node: ast.Name, where: str) -> None:
        builtin = self.program.resolve(node.id, node.scope) is None
        known = not builtin and all(b.how == "def" for b in self.program.variables[self.program._key(node)])
        if node.id in allowed.NAMES and not known:
            raise reject("introspection", f"{where}: {node.id} has no place in a candidate")
        if node.id.startswith("__") and node.id not in ("__name__", "__file__", "__all__"):
            raise reject("introspection", f"{where}: {node.id} has no place in a candidate")
        self._own_module(node, where)
        if isinstance(node.ctx, ast.Load):
            scope = self.program.resolve(node.id, node.scope)
            if scope is not None and scope.kind == "class" and any(b.how == "def" and not static(b.node) for b in scope.names[node.id]):
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
        if module is not None and not inside and not (isinstance(node.up, ast.Attribute) and spelled_out(node)):
            raise reject("introspection", f"{where}: module {value.data} is kept or handed on")

    def _full(self, full: str, where: str) -> None:
        """The full name of something of a library, wherever it is named."""
        parts = full.split(".")
        if parts[0] not in allowed.ROOTS:
            return
        if parts[-1] in allowed.OPEN_NAMES:
            raise reject("introspection", f"{where}: {full}, wanted ModuleList, ParameterList or attributes")
        if parts[0] == "torch" and any(p in allowed.INSIDE or p.startswith("_") for p in parts[1:]):
            raise reject("torch_op", f"{where}: {full}")
        if any(p in allowed.STDLIB for p in parts[1:]):
            raise reject("introspection", f"{where}: {full}, a module behind a module")

    def _attribute(self, node: ast.Attribute, where: str) -> None:
        p, value = self.program, self.program.value(node)
        if node.attr.startswith("__") and node.attr not in ("__init__", "__name__"):
            raise reject("introspection", f"{where}: attribute {node.attr}")
        if "hook" in node.attr or node.attr in allowed.MODULE_CHANGES or node.attr in allowed.PRIVATE:
            raise reject("torch_op", f"{where}: {ast.unparse(node)[:80]}")
        self._own_module(node, where)
        if node.attr in allowed.OPEN_NAMES:
            raise reject("introspection", f"{where}: {node.attr}, wanted ModuleList, ParameterList or attributes")
        called = isinstance(node.up, ast.Call) and node.up.func is node
        if node.attr in allowed.MUTATORS | allowed.REGISTERS | allowed.CAPTURES and isinstance(node.ctx, ast.Load) and not called:
            raise reject("introspection", f"{where}: method {node.attr} is kept or handed on")
        if node.attr in allowed.REGISTERS and not registered(node.up):
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
        fits = (
            p.own_object(node.value)
            or base.kind in ("kernel", "jit")
            or (base.kind in ("unknown", "none") and node.attr in allowed.SETTABLE)
        )
        if base.kind == "class" and node.scope.kind != "class":
            fits = bool(base.data) and all(isinstance(c, ast.ClassDef) for c in base.data)
        if not fits:
            raise reject("patch", f"{where}: assignment to {ast.unparse(node)[:80]}, which is not the candidate's own")

    def _constructs(self, node: ast.Attribute) -> bool:
        """super().__init__(...) or torch.nn.Module.__init__(self) in an __init__."""
        holder = node.scope.node
        inside = isinstance(holder, ast.FunctionDef) and holder.name == "__init__" and method_of(holder) is not None
        called = isinstance(node.up, ast.Call) and node.up.func is node
        plain_super = isinstance(node.value, ast.Call) and self.program.value(node.value.func) == Value("builtin", "super")
        return inside and called and (plain_super or self.program.value(node.value) == Value("lib", "torch.nn.Module"))

    def _class(self, node: ast.ClassDef, where: str) -> None:
        if node.keywords or getattr(node, "type_params", None):
            raise reject("introspection", f"{where}: class {node.name} with a metaclass or other keywords")
        for base in node.bases:
            value = self.program.value(base)
            own = value.kind == "class" and value.data and all(isinstance(c, ast.ClassDef) for c in value.data)
            if not own and value.data not in allowed.BASES:
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
        if node.name in allowed.PRIVATE | {"getattr", "hasattr", "super", "ModelNew"} or node.name in allowed.MODULE_CHANGES:
            raise reject("patch", f"{where}: a function named {node.name}")
        for decorator in node.decorator_list:
            self._decorator(decorator, where)

    def _decorator(self, node: ast.AST, where: str) -> None:
        if _decorates(self.program, node) not in allowed.DECORATORS:
            raise reject(
                "introspection", f"{where}: decorator {ast.unparse(node)[:60]}, wanted only {', '.join(sorted(allowed.DECORATORS))}"
            )

    # ---- calls ----

    def _handed(self, node: ast.Call) -> None:
        """What calls its arguments may be handed own functions and kernels, and arithmetic only where all else is numbers."""
        p, name = self.program, self.program.value(node.func).data
        if not isinstance(name, str):
            return
        handed = [node.args[allowed.CALLERS[name]]] if name in allowed.CALLERS and len(node.args) > allowed.CALLERS[name] else []
        handed += [
            k.value
            for k in node.keywords
            if k.arg == allowed.KEYWORD_CALLERS.get(name, "") or (name in allowed.CALLERS and k.arg in ("func", "function"))
        ]
        loose = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
        if loose and (name in allowed.CALLERS or name in allowed.KEYWORD_CALLERS):
            raise reject("torch_op", f"{self._where(node)}: {name} with unpacked arguments")
        others = [a for a in (*node.args, *(k.value for k in node.keywords)) if a not in handed]
        if (name == "itertools.count" or (name == "itertools.accumulate" and not handed)) and not all(map(p.plain, others)):
            raise reject("torch_op", f"{self._where(node)}: {name} adds what may be tensors")
        for function in handed:
            value = p.value(function)
            own = value.kind in CALLABLE and not (value.data and self.main in value.data)
            plain = value.kind == "builtin" and value.data in allowed.PURE | allowed.CARRIERS and value.data not in ("type", "iter")
            numbers = (value.kind == "builtin" and value.data in allowed.ARITHMETIC) or (value.kind == "lib" and _arithmetic(value.data))
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
        elif name in allowed.ARITHMETIC:
            if not building and not all(map(self.program.plain, arguments)):
                raise reject("torch_op", f"{where}: {name}() on what may be a tensor is torch's work")
        elif name not in allowed.PURE | allowed.CARRIERS | allowed.ERRORS | {
            "map",
            "filter",
            "object",
            "staticmethod",
            "classmethod",
            "property",
        }:
            raise reject("torch_op", f"{where}: a call of {name}, which is neither an own kernel nor plain Python")

    def _inherited(self, node: ast.Call) -> bool:
        """A class of the candidate's own, above the one that names super(), defines the method."""
        own = method_of(node.scope.node) if isinstance(node.scope.node, ast.FunctionDef) else None
        above = self.program.ancestors(own)[1:] if own is not None and not node.args else []
        return any(getattr(n, "name", "") == node.up.attr for c in above for n in c.body)

    def _library(self, node: ast.Call, full: str, where: str, building: bool) -> None:
        root, _, rest = full.partition(".")
        if full in allowed.LOADERS:
            return
        if root == "torch":
            parent, _, last = full.rpartition(".")
            if rest in allowed.ALLOCATE or (parent == "torch.cuda" and last in allowed.CUDA and not (building and full in allowed.GRAPHS)):
                return
            if building and parent == "torch.nn" and last[:1].isupper() and last not in allowed.HOLD_TENSORS:
                stack = last in ("TransformerEncoder", "TransformerDecoder")
                given = node.args[1:] if stack and node.args and not isinstance(node.args[0], ast.Starred) else node.args
                loose = ("encoder_layer", "decoder_layer", "norm") if stack else ("weight", "pos_weight", "_weight")
                settings = [*given, *(k.value for k in node.keywords if k.arg not in loose)]
                if not all(map(self.program.plain, settings)):
                    raise reject("torch_op", f"{where}: a setting of {full} may be a tensor")
            if (
                building
                and full not in allowed.GRAPHS
                and (
                    (parent in allowed.BUILDING and last not in allowed.REACHES_OUT and parent != "torch.cuda")
                    or full in allowed.WEIGHT_NORMS
                )
            ):
                return
            raise reject("torch_op", f"{where}: a call of {full}")
        if root == "cupy":
            if rest in allowed.CUPY:
                return
            raise reject("library_call", f"{where}: {full} is a library's work, not a kernel's")
        if root == "triton" and (rest in allowed.TRITON or rest.startswith("runtime.driver.active.") or rest == "language.constexpr"):
            numbers = rest in ("cdiv", "next_power_of_2")
        elif (root == "math" and not rest.startswith("_")) or (root == "operator" and rest in allowed.OPERATORS):
            numbers = True
        elif full in allowed.PLUMBING or full in ("typing.cast", "typing.TypeVar"):
            numbers = False
            if full == "collections.namedtuple" and _fields(node) & allowed.TRUSTED:
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
            if func.attr in allowed.CAPTURES:
                raise reject("torch_op", f"{where}: a graph is captured outside forward")
            if not own and (func.attr[:1].isupper() or func.attr == "namedtuple"):
                raise reject("torch_op", f"{where}: a call of {ast.unparse(func)[:60]}, which is not always the same")
            return
        if func.attr not in allowed.METHODS:
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
            asked = up.up if isinstance(up, ast.Tuple) else up
            if isinstance(asked, ast.Call) and p.value(asked.func) == Value("builtin", "isinstance"):
                return
            value = p.value(node)
            root, *rest = str(value.data).split(".") if value.kind == "lib" else [""]
            library = (root == "torch" and rest and rest[0] not in allowed.PLAIN) or (
                root == "cupy" and rest and ".".join(rest) not in allowed.CUPY
            )
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
        return allowed.TRUSTED


def _decorates(program: Program, node: ast.AST) -> str | None:
    value = program.value(node.func if isinstance(node, ast.Call) else node)
    return value.data if value.kind in ("lib", "builtin") else None


def _arithmetic(full: str) -> bool:
    root, _, name = full.partition(".")
    return root == "math" or (root == "operator" and name in allowed.OPERATORS)


def check(trees: dict[str, ast.Module], check_inline: Callable[[str, str], None]) -> None:
    """Trees by file name; model_new.py has a class ModelNew with a forward. Raises Failed (rejected, format_error)."""
    for name in trees:
        root = module_name(name).partition(".")[0]
        if root in allowed.ROOTS | sys.stdlib_module_names:
            raise reject("import", f"{name}: a file named like the module {root}")
        if sum(module_name(other) == module_name(name) for other in trees) > 1:
            raise reject("import", f"{name}: two files for the module {module_name(name)}")
    if sum(1 for tree in trees.values() for _ in ast.walk(tree)) > MAX_NODES:
        raise reject("introspection", f"the Python of a candidate has more than {MAX_NODES} nodes")
    try:
        Rules(trees, check_inline).run()
    except RecursionError:
        raise Failed(Status.FORMAT_ERROR, "expressions are nested too deeply") from None
