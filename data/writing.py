"""The source of a task, written as a person would write it, its surface varied: names, spellings, nesting, constants, docstrings."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

from data.operators import Operator, Spelling
from data.values import Shape

VARIABLES = ("x", "x", "x", "h", "out", "y", "z")
SIZES = {
    1: (("n",), ("size",), ("length",)),
    2: (("batch_size", "dim"), ("batch_size", "features"), ("rows", "cols"), ("N", "D"), ("M", "N"), ("batch", "hidden")),
    3: (("batch_size", "seq_len", "dim"), ("B", "T", "C"), ("batch", "length", "channels")),
    4: (("batch_size", "channels", "height", "width"), ("N", "C", "H", "W"), ("batch", "in_channels", "h", "w")),
    5: (("batch_size", "channels", "depth", "height", "width"), ("N", "C", "D", "H", "W")),
}
SECOND_INPUTS = ("y", "other", "residual", "b")
MODULES = {"activation": ("act", "activation", "nonlinearity"), "norm": ("norm", "ln"), "softmax": ("softmax", "probs")}
PARAMETERS = {"mul": ("scale", "gain", "gamma"), "weight": ("weight", "gamma"), "bias": ("bias", "beta")}
OPENINGS = ("Applies", "Computes", "Model that computes", "A small block:", "Fused")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operand:
    """A tensor that a step needs beside its input: an input of the task or a parameter of the model."""

    name: str
    """What it is called in the source, as far as that is free."""
    shape: Shape
    draw: str
    """The expression that draws it; {shape} stands for its sizes."""
    parameter: bool = False
    key: str = ""
    """Its place in the call's template."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One operator of a composition with the choices made for it; `shape` is that of its input."""

    operator: Operator
    spelling: Spelling
    args: dict[str, Any]
    operand: str | None
    shape: Shape
    operands: tuple[Operand, ...] = ()
    draw: str | None = None
    """How the task's input is drawn where this is the first step; None = normal numbers."""


class _Source:
    """Collects the parts of one source while its steps are written."""

    def __init__(self, rng: Random, shape: Shape, plain: bool):
        self.rng, self.shape, self.plain = rng, shape, plain
        self.sizes = SIZES[len(shape)][0] if plain else rng.choice(SIZES[len(shape)])
        self.taken = {"x", "self", *self.sizes}
        self.inputs = [("x", shape)]
        self.draws: dict[str, str] = {}
        """How an input is drawn, where it is not with normal numbers."""
        self.built: list[str] = []
        self.init: list[tuple[str, str]] = []
        """(parameter of __init__, literal that get_init_inputs gives)."""
        self.passes_row = plain or rng.random() < 0.7
        self.passes_constants = not plain and rng.random() < 0.3

    def fresh(self, choices: tuple[str, ...]) -> str:
        free = [c for c in choices if c not in self.taken]
        name = self.rng.choice(free) if free and not self.plain else (free or [choices[0]])[0]
        number = 2
        while name in self.taken:
            name = f"{choices[0]}{number}"
            number += 1
        self.taken.add(name)
        return name

    def row(self, length: int) -> str:
        """How the length of the last dimension is written inside __init__."""
        if length != self.shape[-1]:
            return str(length)
        if not self.passes_row:
            return self.sizes[-1]
        if not any(name == self.sizes[-1] for name, _ in self.init):
            self.init.insert(0, (self.sizes[-1], self.sizes[-1]))
        return self.sizes[-1]

    def constant(self, name: str, value: Any, in_module: bool) -> str:
        """A literal, or a constructor argument where this source passes its constants."""
        if not (self.passes_constants and isinstance(value, float)) or name == "eps":
            return repr(value)
        given = self.fresh(({"value": "alpha", "min": "min_val", "max": "max_val"}.get(name, name), "factor", "constant"))
        self.init.append((given, repr(value)))
        if in_module:
            return given
        self.built.append(f"self.{given} = {given}")
        return f"self.{given}"

    def parameter(self, choices: tuple[str, ...], value: str) -> str:
        name = self.fresh(choices)
        self.built.append(f"self.{name} = nn.Parameter({value})")
        return f"self.{name}"


def write_source(rng: Random, steps: tuple[Step, ...], shape: Shape, *, surface: str = "varied") -> str:
    """Source of a task that applies `steps` to an input of `shape`, following KernelBench's contract.

    With surface "plain" each step is one assignment to `x` and there are no docstrings; spellings are the steps' own either way.
    """
    plain = surface == "plain"
    made = _Source(rng, shape, plain)
    if steps[0].draw is not None:
        made.draws["x"] = steps[0].draw
    lines, result = _forward(made, steps, plain)
    arguments = ", ".join(name for name, _ in made.inputs)
    typed = not plain and rng.random() < 0.3
    if typed:
        arguments = ", ".join(f"{name}: torch.Tensor" for name, _ in made.inputs)
    functional = any("F." in line for line in [*lines, result])
    short = not plain and rng.random() < 0.3
    head = ["import torch", "from torch import nn" if short else "import torch.nn as nn"]
    if functional:
        head.append("from torch.nn import functional as F" if short else "import torch.nn.functional as F")
    body = ["", "", "class Model(nn.Module):"]
    if not plain and rng.random() < 0.35:
        body.append(f'    """{_docstring(rng, steps)}"""')
        body.append("")
    if made.built or rng.random() < 0.4:
        body.append(f"    def __init__(self{''.join(', ' + name for name, _ in made.init)}):")
        body.append("        super().__init__()" if plain or rng.random() < 0.6 else "        super(Model, self).__init__()")
        body += [f"        {line}" for line in made.built] + [""]
    body.append(f"    def forward(self, {arguments}){' -> torch.Tensor' if typed else ''}:")
    body += [f"        {line}" for line in lines] + [f"        return {result}"]
    return "\n".join([*head, *_arrange(rng, made, body, plain)]) + "\n"


def _arrange(rng: Random, made: _Source, body: list[str], plain: bool) -> list[str]:
    """Size constants before or after the class (literal sizes where nothing else needs their names), then the two functions."""
    text = "\n".join(body)
    named = made.init or any(f"{size}," in text or f"({size}" in text for size in made.sizes) or plain or rng.random() < 0.7
    constants = [f"{name} = {value}" for name, value in zip(made.sizes, made.shape, strict=True)] if named else []
    inside = [", ".join(_size_names(made, shape) if named else map(str, shape)) for _, shape in made.inputs]
    functions = ["", "", "def get_inputs():", *_draw(rng, made, inside, plain)]
    functions += ["", "", "def get_init_inputs():", f"    return [{', '.join(value for _, value in made.init)}]"]
    if constants and not plain and rng.random() < 0.25:
        return ["", *constants, *body, *functions]
    return [*body, *(["", "", *constants] if constants else []), *functions]


def _size_names(made: _Source, shape: Shape) -> list[str]:
    return [made.sizes[at] if made.shape[at : at + 1] == (length,) else str(length) for at, length in enumerate(shape)]


def _draw(rng: Random, made: _Source, inside: list[str], plain: bool) -> list[str]:
    draws = [f"torch.{'rand' if not plain and rng.random() < 0.15 and at else 'randn'}({sizes})" for at, sizes in enumerate(inside)]
    for at, (name, _) in enumerate(made.inputs):
        if name in made.draws:
            draws[at] = made.draws[name].format(shape=inside[at])
    if plain or rng.random() < 0.7:
        return [f"    return [{', '.join(draws)}]"]
    names = ["x", *(f"x{at}" for at in range(2, len(inside) + 1))]
    return [*(f"    {name} = {draw}" for name, draw in zip(names, draws, strict=True)), f"    return [{', '.join(names)}]"]


def _forward(made: _Source, steps: tuple[Step, ...], plain: bool) -> tuple[list[str], str]:
    """The statements of `forward` and the expression that it returns."""
    rng = made.rng
    lines: list[str] = []
    variable = "x" if plain else rng.choice(VARIABLES)
    made.taken.add(variable)
    value, compound = "x", False
    for at, step in enumerate(steps):
        value = _call(made, step, value, compound)
        compound = step.spelling.style == "operator"
        if at + 1 == len(steps):
            break
        once = steps[at + 1].spelling.call.count("{x}") == 1
        if plain or not once or len(value) > 48 or rng.random() < 0.6:
            lines.append(f"{variable} = {value}")
            value, compound = variable, False
    if not plain and rng.random() < 0.3 and value != variable:
        lines.append(f"{variable} = {value}")
        value = variable
    return lines, value


def _call(made: _Source, step: Step, value: str, compound: bool) -> str:
    spelling, operator = step.spelling, step.operator
    in_module = spelling.style == "module"
    fields: dict[str, str] = {}
    for name, given in step.args.items():
        if name == "row":
            inside_init = in_module or "self" not in spelling.call
            fields[name] = made.row(step.shape[-1]) if in_module else _row_in_forward(made, step.shape[-1]) if inside_init else str(given)
        elif name in _names(spelling.call) or name in _names(spelling.init or ""):
            fields[name] = made.constant(name, given, in_module)
    for name, initial in spelling.parameters:
        fields[name] = made.parameter(PARAMETERS[name], initial.format(row=made.row(step.shape[-1])))
    if step.operand == "input":
        fields["y"] = made.fresh(SECOND_INPUTS)
        made.inputs.append((fields["y"], step.shape))
    elif step.operand == "row":
        choices = PARAMETERS["mul"] if operator.name == "mul" else ("bias", "shift", "offset")
        fields["y"] = made.parameter(choices, f"torch.randn({made.row(step.shape[-1])})")
    for operand in step.operands:
        if operand.parameter:
            fields[operand.key] = made.parameter((operand.name,), operand.draw.format(shape=", ".join(map(str, operand.shape))))
        else:
            fields[operand.key] = name = made.fresh((operand.name,))
            made.inputs.append((name, operand.shape))
            made.draws[name] = operand.draw
    if spelling.init:
        name = made.fresh(MODULES.get(operator.family, ("layer", "op")))
        made.built.append(f"self.{name} = {spelling.init.format(**fields)}")
        fields["m"] = f"self.{name}"
    loose = compound and not _encloses(spelling.call)
    call = spelling.call
    if step.args.get("keepdim") is False and (made.plain or made.rng.random() < 0.8):  # the default is seldom written
        call = call.replace(", keepdim={keepdim}", "")
    return call.format(x=f"({value})" if loose else value, **fields)


def _row_in_forward(made: _Source, length: int) -> str:
    return made.sizes[-1] if length == made.shape[-1] and not made.passes_row else str(length)


def _names(template: str) -> set[str]:
    return {part.partition("}")[0] for part in template.split("{")[1:]}


def _encloses(call: str) -> bool:
    """True where {x} stands alone between brackets or commas, so that no parentheses are needed."""
    before, after = call.split("{x}", 1)
    return before.endswith("(") and after[:1] in (")", ",")


def _docstring(rng: Random, steps: tuple[Step, ...]) -> str:
    words = [step.operator.name.replace("_", " ") for step in steps]
    listed = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
    return f"{rng.choice(OPENINGS)} {listed}."
