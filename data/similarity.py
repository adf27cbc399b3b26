"""How alike two sources are: normalised text, similarity of syntax trees, overlap of operator signatures."""

from __future__ import annotations

import ast
import collections
import difflib


def normalise(source: str) -> str:
    """`source` without comments, docstrings, annotations and layout, its own names numbered in order of appearance.

    Two sources with the same result differ only on the surface. Raises ValueError when `source` is not Python.
    """
    tree = _parse(source)
    own = _own_names(tree)
    numbers: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and _docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        for field in ("id", "arg", "attr", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name in own:
                setattr(node, field, numbers.setdefault(name, f"v{len(numbers)}"))
    return ast.unparse(tree)


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"source: got {error}, wanted Python") from error


def _docstring(node: ast.AST) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _own_names(tree: ast.Module) -> set[str]:
    """Names that the source binds, the contract's three left out."""
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    return own - {"self", "Model", "get_inputs", "get_init_inputs"}


def tree_tokens(source: str) -> tuple[str, ...]:
    """Node types, called names and operators of the syntax tree in source order, names of variables and constants left out."""
    tokens: list[str] = []

    def visit(node: ast.AST) -> None:
        token = type(node).__name__
        if isinstance(node, ast.Attribute):
            token += ":" + node.attr
        if not isinstance(node, (ast.Load, ast.Store)):
            tokens.append(token)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(_parse(normalise(source)))
    return tuple(tokens)


def similarity(a: tuple[str, ...], b: tuple[str, ...], *, at_least: float = 0.0) -> float:
    """Share of matching tree tokens of two `tree_tokens`, 0 to 1; 0 without the full comparison where it cannot reach `at_least`."""
    if not a or not b:
        return 0.0
    common = sum((collections.Counter(a) & collections.Counter(b)).values())
    if 2 * common / (len(a) + len(b)) < at_least:
        return 0.0
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()
