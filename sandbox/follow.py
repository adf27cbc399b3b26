"""What every name of a candidate's Python stands for, and which values may hold a tensor.

`Program` reads all files and binds names by scope (`_visit` to `resolve`). Two fixed points over all bindings of all names follow: what each
may be called as (`value`: least, a call joins what its function returns), and what can never hold a tensor (`plain`: greatest, everything is
plain until a binding, an argument or a store says otherwise). `_find_uses` lists the calls that reach a function, `_taint` what shares a
container, `lists` what would gather when it indexes.

Attributes are known by name alone, whatever object has them. Of the arguments that the task gives to ModelNew.__init__ all are taken for numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from data.records import Status
from sandbox import allowed
from sandbox.backends import Failed


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
            self.modules[module_name(name)] = scope
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
                self._loop(part, inside)
                self._body(part.ifs, inside, part)
            self._body([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt], inside, node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            return
        elif isinstance(node, ast.Call) and (name := registered(node)):
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
            self._loop(node, scope)
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

    def _loop(self, node: ast.For | ast.comprehension, scope: Scope) -> None:
        """Targets of a loop; those of enumerate() and zip() one by one."""
        target, iterated = node.target, node.iter
        called = iterated.func.id if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name) else None
        arguments = iterated.args if called in ("enumerate", "zip") and not any(isinstance(a, ast.Starred) for a in iterated.args) else []
        ways = [Binding("element", a) for a in arguments]
        if called == "enumerate" and arguments:
            ways = [Binding("none", node), ways[0]]
        paired = (
            isinstance(target, ast.Tuple) and len(target.elts) == len(ways) and not any(isinstance(e, ast.Starred) for e in target.elts)
        )
        if not paired:
            return self._target(target, Binding("element", iterated), scope, node)
        target.scope, target.up = scope, node
        self.nodes.append(target)
        for element, way in zip(target.elts, ways, strict=True):
            self._target(element, way, scope, target)

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
                spelled_out(d) in ("property", "functools.cached_property", "cached_property") for d in binding.node.decorator_list
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
        name, _, rest = spelled_out(node).partition(".")
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
            return found if all(b.how == "def" and static(b.node) for b in self.attributes[node.attr]) else UNKNOWN
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
            return isinstance(node.scope.node, ast.FunctionDef) and method_of(node.scope.node) is not None and not static(node.scope.node)
        if isinstance(node, ast.Name):
            scope = self.resolve(node.id, node.scope)
            if scope is not None and [b.how for b in scope.names[node.id]] == ["param"]:
                function = scope.node
                first = [*function.args.posonlyargs, *function.args.args][:1]
                return bool(first) and first[0].arg == node.id and method_of(function) and not static(function)
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
            if called.data in allowed.LOADERS:
                plain_module = not any(k.arg in (None, "is_python_module", "is_standalone") for k in node.keywords)
                return Value(allowed.LOADERS[called.data]) if plain_module else UNKNOWN
            if called.data == "collections.namedtuple":
                return Value("class", frozenset())
            inner = self.value(node.args[0]) if called.data == "functools.partial" and node.args else UNKNOWN
            return inner if inner.kind in (*CALLABLE, "none") else UNKNOWN
        if called.kind == "function" and called.data and all(isinstance(f, Function) for f in called.data):
            if any(generator(f) for f in called.data):
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
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in allowed.MUTATORS:
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
                if key not in self.mixed and (generator(function) or not all(r is None or self.plain(r) for r in _returned(function))):
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
            if called == KERNEL or (called.kind == "lib" and called.data.startswith(("torch.", "math.", "triton."))):
                return  # makes something new of what it is given
            for function in functions_of(called):
                self.mixed.add(("result", id(function)))
                for returned in _returned(function):
                    self._taint(returned, seen)
            targets = node.up.targets if isinstance(getattr(node, "up", None), ast.Assign) else ()
            parts = list(ast.iter_child_nodes(node))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop", "setdefault"):
                # The key of a container's own method is not in what it returns
                parts = parts if node.func.attr in self.attributes else [node.func, *node.args[1:]]
            for child in (*parts, *(t.value if isinstance(t, ast.Subscript) else t for t in targets)):
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
            return node.id in allowed.PURE | allowed.CARRIERS | allowed.ERRORS if key is None else key not in self.mixed
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
        if node.attr in allowed.FACTS and not (self.own_object(node.value) and node.attr != "training"):
            return True
        if node.attr in allowed.SETTINGS and not self.own_object(node.value):
            return True
        return self.plain(node.value) and not self.own_object(node.value)

    def _plain_result(self, node: ast.Call) -> bool:
        called, arguments = self.value(node.func), [*node.args, *(k.value for k in node.keywords)]
        if called.kind in ("function", "class") and called.data is not None:
            if called.kind == "class":
                return all(map(self.plain, arguments))
            return self._plain_handed(called)
        if called.data in allowed.CALLERS and len(node.args) > allowed.CALLERS[called.data]:
            handed = node.args[allowed.CALLERS[called.data]]
            return self._plain_handed(self.value(handed)) and all(self.plain(a) for a in arguments if a is not handed)
        if called.kind == "builtin":
            return called.data in allowed.PURE or (
                called.data in allowed.CARRIERS | allowed.ARITHMETIC | allowed.ERRORS and all(map(self.plain, arguments))
            )
        if called.kind == "lib":
            root, _, rest = called.data.partition(".")
            if root == "torch":
                return (
                    rest in ("finfo", "iinfo", "device", "Size", "get_num_threads", "is_tensor", "is_floating_point")
                    or rest.removeprefix("cuda.") in allowed.CUDA_FACTS
                )
            handed = [v for v in map(self.value, arguments) if v.kind == "function"]
            return (
                root in allowed.LIBRARIES
                and rest not in allowed.CUPY_ARRAYS
                and all(map(self.plain, arguments))
                and all(map(self._plain_handed, handed))
            )
        if isinstance(node.func, ast.Attribute) and called.kind != "kernel":
            if node.func.attr in allowed.MAKES_NUMBER and self.number_of(node.func.attr):
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
                return isinstance(node, ast.Attribute) and node.attr in allowed.SETTINGS
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
        functions = functions_of(called) or [f for a in arguments for f in functions_of(self.value(a))]
        if any(generator(f) for f in functions):
            return True
        if called.kind == "function":
            return any_of([r for f in functions for r in _returned(f)])
        if called.kind == "builtin" or root in ("itertools", "functools", "collections"):
            if called.data in allowed.PURE or called.data in ("sum", "abs", "pow", "round", "divmod", "functools.reduce"):
                return name == "range" and not inside
            mine = any_of([r for f in functions for r in _returned(f)], False)
            return (not inside and name not in ("tuple", "next", "min", "max")) or mine or any_of(arguments, True) or name == "repeat"
        if called.kind == "lib":
            return root.partition(".")[0] not in ("math", "operator", "triton", "torch")
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in ("get", "pop", "items", "values", "keys", "setdefault"):
                return any_of([node.func.value, *arguments], True)
            return name not in allowed.MAKES_NUMBER or name == "tolist"
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
        name, method = getattr(function, "name", ""), method_of(function)
        if method and not static(function) and parameter is [*function.args.posonlyargs, *function.args.args][0]:
            tuples = any(self.value(b) == Value("lib", "typing.NamedTuple") for c in self.ancestors(method) for b in c.bases)
            return not tuples or all(self._made_plainly(c) for c in self.classes if method in self.ancestors(c))
        if method and name == "__post_init__":
            return False
        if method and name == "__init__" and method.name == "ModelNew":
            return True
        if (method and name in allowed.MODULE_METHODS) or not self.followed(function):
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
                    isinstance(node.up, ast.Call) and (node.up.func is node or spelled_out(node.up.func) in ("isinstance", "super"))
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
            return [(f, 0) for f in functions_of(self.value(call.args[0]))]
        if not isinstance(func, ast.Attribute) or value.kind == "lib":
            return [(f, 0) for f in found]
        known = self.own_object(func.value) and value.kind in ("function", "class")
        if not known:  # it may be whatever the candidate keeps under that name
            found += [b.node for b in self.attributes.get(func.attr, ()) if b.how in ("def", "class")]
            kept = [self.value(b.node) for b in self.attributes.get(func.attr, ()) if b.how == "value"]
            found += [n for v in kept if v.kind in ("function", "class") for n in v.data if n is not KERNEL]
        # A function kept on an object is bound where its class keeps it, and not where the instance does
        bound = [(f, 1) for f in found if not static(f)]
        return bound + [(f, 0) for f in found if static(f) or not known or method_of(f) is None]

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
                    or name not in allowed.CALLERS | allowed.KEYWORD_CALLERS
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


def functions_of(value: Value) -> list[Function]:
    return [f for f in value.data if isinstance(f, Function)] if value.kind == "function" else []


def _plain_library(full: str) -> bool:
    root, _, rest = full.partition(".")
    return (
        (root == "torch" and rest in allowed.PLAIN)
        or full in ("math.pi", "math.e", "math.inf", "math.nan", "math.tau")
        or (root == "cupy" and rest in allowed.CUPY - allowed.CUPY_ARRAYS)
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


def registered(call: ast.Call) -> str | None:
    """The constant name under which a call registers a buffer or parameter."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in allowed.REGISTERS:
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


def generator(function: Function) -> bool:
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for n in _own_nodes(function))


def _pure(function: Function) -> bool:
    """One expression, no assignment, no method called in it."""
    if isinstance(function, ast.FunctionDef) and not all(isinstance(s, ast.Return) for s in function.body):
        return False
    inside = list(_own_nodes(function))
    methods = [
        n for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and spelled_out(n.func) not in allowed.PURE_CALLS
    ]
    return not methods and not any(isinstance(n, ast.NamedExpr) for n in inside)


def spelled_out(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def method_of(function: ast.AST) -> ast.ClassDef | None:
    scope = function.scope
    return scope.node if isinstance(function, ast.FunctionDef) and scope.kind == "class" else None


def static(function: ast.AST) -> bool:
    return any(spelled_out(d) == "staticmethod" for d in getattr(function, "decorator_list", ()))


def _escapes(node: ast.AST) -> bool:
    """A load of a name from where a container may be changed by another name."""
    up = node.up
    if isinstance(up, ast.Subscript):
        return up.value is not node
    if isinstance(up, ast.Attribute | ast.Compare | ast.If | ast.While | ast.UnaryOp):
        return False
    if isinstance(up, ast.For | ast.comprehension):
        return up.iter is not node
    return not (isinstance(up, ast.Call) and spelled_out(up.func) in ("len", "enumerate", "zip", "tuple", "list", "isinstance", "bool"))


def module_name(file: str) -> str:
    return file[:-3].replace("/", ".").removesuffix(".__init__")
