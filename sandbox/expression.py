"""Integer expressions over shapes: a small recursive-descent parser and evaluator. No Python eval, bounded in size and value.

    expr := term (("+" | "-") term)*      term := unary (("*" | "//" | "%") unary)*      unary := "-" unary | primary
    primary := INT | FUNC "(" expr ("," expr)* ")" | NAME ["[" ["-"] INT "]"] | "(" expr ")"
FUNC is min, max, ceil_div or next_pow2; NAME is dotted, for example `p.linear.weight.shape`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

Node = tuple
"""("int", v), ("name", dotted, index or None), ("neg", a), (operator, a, b), ("call", function, (args...))."""
MAX_TEXT = 200
MAX_DEPTH = 24
MAX_VALUE = 2**62
FUNCTIONS = {"min": (2, 8), "max": (2, 8), "ceil_div": (2, 2), "next_pow2": (1, 1)}
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*(?:\.\w+)*)|(//|[-+*%(),\[\]]))")


class ExpressionError(ValueError):
    """Text that is no integer expression, or a value out of bounds."""


def parse_expression(value: Any) -> Node:
    """A JSON integer or a string to a tree. Raises ExpressionError."""
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= MAX_VALUE:
            raise ExpressionError(f"got {value}, wanted less than 2**62")
        return ("int", value)
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT:
        raise ExpressionError(f"got {str(value)[:60]!r}, wanted an integer or an expression of at most {MAX_TEXT} characters")
    tokens, at = [], 0
    while value[at:].strip():
        match = _TOKEN.match(value, at)
        if match is None:
            raise ExpressionError(
                f"got {value[at:].strip()[:20]!r} in {value!r}, wanted + - * // % min max ceil_div next_pow2, names and integers"
            )
        tokens.append(match[1] or match[2] or match[3])
        at = match.end()
    parser = _Parser(value, tokens)
    node = parser.sum(0)
    if parser.at < len(tokens):
        raise ExpressionError(f"got {tokens[parser.at]!r} in {value!r}, wanted the end")
    return node


class _Parser:
    def __init__(self, text: str, tokens: list[str]):
        self.text, self.tokens, self.at = text, tokens, 0

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if token is None or (wanted is not None and token != wanted):
            raise ExpressionError(f"got {token or 'the end'!r} in {self.text!r}, wanted {wanted or 'a value'!r}")
        self.at += 1
        return token

    def sum(self, depth: int) -> Node:
        return self._chain(("+", "-"), self.product, depth)

    def product(self, depth: int) -> Node:
        return self._chain(("*", "//", "%"), self.unary, depth)

    def _chain(self, operators: tuple[str, ...], below: Callable[[int], Node], depth: int) -> Node:
        node = below(depth + 1)
        while self.peek() in operators:
            operator = self.take()
            node = (operator, node, below(depth + 1))
        return node

    def unary(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"got {self.text!r}, wanted less nesting")
        if self.peek() == "-":
            self.take()
            return ("neg", self.unary(depth + 1))
        token = self.take()
        if token.isdigit():
            return ("int", int(token))
        if token == "(":
            node = self.sum(depth + 1)
            self.take(")")
            return node
        if token in FUNCTIONS and self.peek() == "(":
            return self._call(token, depth)
        if not re.match(r"[A-Za-z_]", token):
            raise ExpressionError(f"got {token!r} in {self.text!r}, wanted a value")
        return ("name", token, self._index() if self.peek() == "[" else None)

    def _call(self, function: str, depth: int) -> Node:
        self.take("(")
        args = [self.sum(depth + 1)]
        while self.peek() == ",":
            self.take()
            args.append(self.sum(depth + 1))
        self.take(")")
        least, most = FUNCTIONS[function]
        if not least <= len(args) <= most:
            raise ExpressionError(f"got {len(args)} arguments for {function} in {self.text!r}, wanted {least} to {most}")
        return ("call", function, tuple(args))

    def _index(self) -> int:
        self.take("[")
        sign = -1 if self.peek() == "-" else 1
        if sign < 0:
            self.take()
        token = self.take()
        if not token.isdigit():
            raise ExpressionError(f"got index {token!r} in {self.text!r}, wanted an integer")
        self.take("]")
        return sign * int(token)


def names(node: Node) -> Iterator[str]:
    """Every dotted name in the tree."""
    if node[0] == "name":
        yield node[1]
    for child in node[2] if node[0] == "call" else node[1:]:
        if isinstance(child, tuple):
            yield from names(child)


def value_of(node: Node, lookup: Callable[[str, int | None], int]) -> int:
    """Evaluate; `lookup(name, index)` answers names. Floor division and modulo as in Python. Raises ExpressionError."""
    kind = node[0]
    if kind == "int":
        result = node[1]
    elif kind == "name":
        result = lookup(node[1], node[2])
    elif kind == "neg":
        result = -value_of(node[1], lookup)
    elif kind == "call":
        result = _apply(node[1], [value_of(a, lookup) for a in node[2]])
    else:
        a, b = value_of(node[1], lookup), value_of(node[2], lookup)
        if kind in ("//", "%") and b == 0:
            raise ExpressionError("got a division by zero, wanted a divisor that is not 0 for these shapes")
        result = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b}[kind]()
    if abs(result) >= MAX_VALUE:
        raise ExpressionError(f"got {result}, wanted less than 2**62")
    return result


def _apply(function: str, args: list[int]) -> int:
    if function == "ceil_div":
        if args[1] == 0:
            raise ExpressionError("got a division by zero, wanted a divisor that is not 0 for these shapes")
        return -(-args[0] // args[1])
    if function == "next_pow2":
        return 1 << max(0, args[0] - 1).bit_length()
    return (min if function == "min" else max)(args)


def python_of(node: Node, name_of: Callable[[str, int | None], str]) -> str:
    """The same expression as Python source, for exported modules; `name_of` spells the names."""
    kind = node[0]
    if kind == "int":
        return str(node[1])
    if kind == "name":
        return name_of(node[1], node[2])
    if kind == "neg":
        return f"(-{python_of(node[1], name_of)})"
    if kind == "call":
        args = [python_of(a, name_of) for a in node[2]]
        if node[1] == "ceil_div":
            return f"(-(-{args[0]} // {args[1]}))"
        if node[1] == "next_pow2":
            return f"(1 << max(0, {args[0]} - 1).bit_length())"
        return f"{node[1]}({', '.join(args)})"
    return f"({python_of(node[1], name_of)} {kind} {python_of(node[2], name_of)})"
