"""Row code as C++ for one core, and the module that calls it: the light `cuda_extension` format of the cpp backend."""

from __future__ import annotations

import dataclasses

from data.listing import constructor
from policy.rowcode import BUFFERS, ROW_SCALAR, ROW_VECTOR, SPARE, Program, Step, Unsupported, expression, number

HEADER = """#pragma GCC optimize("finite-math-only")
#include <math.h>
#define EACH for (long j = 0; j < n; j++)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the same mathematics is laid out.

    fuse: one loop for a run of element-wise operators, else one loop an operator. real: the type of intermediate values; `double`
    halves the vector width. whole: the whole tensor is one row, where that is allowed, so that nothing stays in cache between loops.
    """

    fuse: bool = True
    real: str = "float"

    @property
    def plan(self) -> str:
        return f"plan: {'fused' if self.fuse else 'split'} {self.real}"


class Writer:
    """Emits the lines of one program; see policy/rowcode.py for the idiom."""

    def __init__(self, program: Program, schedule: Schedule, says: bool = False):
        self.program, self.schedule, self.says = program, schedule, says
        self.lines: list[str] = []
        self.left = {program.output: 1}  # how often each value is still read
        for step in program.steps:
            for value in (*step.operands, *(step.args.get(k) for k in ("weight", "bias"))):
                if isinstance(value, int):
                    self.left[value] = self.left.get(value, 0) + 1
        self.current: int | None = None  # the value that `v` holds
        self.loop: str | None = None  # "each" inside EACH, "row" inside a block of one row, None between
        self.stored: dict[int, str] = {}  # value -> row buffer
        self.scalars: dict[int, str] = {}  # value -> row variable
        self.vector = {s.index: s.vector for s in program.steps}

    def write(self) -> list[str]:
        for step in self.program.steps:
            if self.says:
                self.lines += [f"// {line}" for line in self.program.says[step.index]]
            if step.op in ROW_VECTOR or step.op in ROW_SCALAR:
                self.row_operator(step)
            else:
                self.element_operator(step)
        self.finish()
        return self.lines

    # where a value is
    def read(self, value: int, each: bool) -> str:
        if value in self.stored:
            return f"{self.stored[value]}[j]"
        if value in self.scalars:
            return self.scalars[value]
        leaf = self.program.leaves.get(value)
        if leaf is None:
            raise Unsupported(f"value: got node {value} out of reach, wanted it stored")
        return leaf.name + (leaf.access if each else leaf.access.replace("[i + j]", "[i]"))

    def is_vector(self, value: int) -> bool:
        if value in self.vector:
            return self.vector[value]
        return self.program.leaves[value].access in ("[i + j]", "[j]")

    def spend(self, *values: int | None) -> None:
        for value in values:
            if value is not None:
                self.left[value] -= 1
                if self.left[value] == 0:
                    self.stored.pop(value, None)
                    self.scalars.pop(value, None)

    def buffer(self) -> str:
        free = [b for b in BUFFERS if b not in self.stored.values()]
        if not free:
            raise Unsupported("graph: got more live rows than the teacher has buffers")
        return free[0]

    def keep(self) -> None:
        """Save `v` when somebody still reads its value and it stands nowhere else."""
        value = self.current
        if value is None or not self.left.get(value) or value in self.stored or value in self.scalars or value in self.program.leaves:
            return
        if self.loop == "each":
            self.stored[value] = self.buffer()
            self.lines.append(f"{self.stored[value]}[j] = v;")
        else:
            self.scalars[value] = self.spare()
            self.lines.append(f"{self.scalars[value]} = v;")

    def spare(self) -> str:
        free = [p for p in SPARE if p not in self.scalars.values()]
        if not free:
            raise Unsupported("graph: got more live row values than the teacher has names")
        return free[0]

    def close(self) -> None:
        self.keep()
        if self.loop is not None:
            self.join("}")
        self.current, self.loop = None, None

    def join(self, text: str) -> None:
        """Append to the last line: a closing brace stands behind the store before it."""
        if self.lines[-1].startswith("//"):
            self.lines.append(text)
        else:
            self.lines[-1] += " " + text

    def open(self, value: int, vector: bool) -> None:
        start = "EACH { real v = " if vector else "{ real v = "
        self.lines.append(f"{start}{self.read(value, vector)};")
        self.current, self.loop = value, "each" if vector else "row"

    def element_operator(self, step: Step) -> None:
        mode = "each" if step.vector else "row"
        fits = self.current in step.operands and self.loop == mode
        if fits and not self.schedule.fuse and mode == "each" and self.current in self.vector and not self.just_opened():
            self.break_loop()
        if not fits:
            lead = next((v for v in step.operands if self.is_vector(v) == step.vector), step.operands[0])
            if self.loop == mode and self.current is not None:
                self.keep()
                self.lines.append(f"v = {self.read(lead, step.vector)};")
                self.current = lead
            else:
                self.close()
                self.open(lead, step.vector)
        lead = self.current
        names = ["v" if v == lead else self.read(v, step.vector) for v in step.operands]
        fields = dict(zip("abc", names, strict=False))
        self.spend(*step.operands)
        self.keep()
        self.lines.append(f"v = {expression(step).format(**fields)};")
        self.current = step.index

    def just_opened(self) -> bool:
        return next(line for line in reversed(self.lines) if not line.startswith("//")).startswith("EACH")

    def break_loop(self) -> None:
        name = self.stored.get(self.current) or self.buffer()
        if self.current not in self.stored:
            self.lines.append(f"{name}[j] = v; }}")
        else:
            self.join("}")
        self.lines.append(f"EACH {{ real v = {name}[j];")

    def hold(self, value: int) -> None:
        """Let `v` hold `value` in an open loop."""
        if self.current != value or self.loop != "each":
            self.close()
            self.open(value, True)

    def end(self, value: int, store: bool, line: str = "") -> str:
        """End the loop that computes `value`, with `line` last, and its row in a buffer if asked or still read. The buffer's name."""
        again = self.left[value] > 1 and value not in self.program.leaves
        if value not in self.stored and (store or again):
            self.stored[value] = self.buffer()
            self.lines.append(f"{self.stored[value]}[j] = v;")
        self.lines.append((line + " }").strip())
        self.current, self.loop = None, None
        return self.stored.get(value, "")

    def free_row_names(self) -> None:
        for value, name in list(self.scalars.items()):
            if name in ("s", "a"):
                self.scalars[value] = self.spare()
                self.lines.append(f"{self.scalars[value]} = {name};")

    def row_operator(self, step: Step) -> None:
        source = step.operands[0]
        self.hold(source)
        inside, store, after = reduction(step) if step.op in ROW_SCALAR else row_vector(step)
        if step.op == "softmax" and self.left[source] > 1:
            self.keep()
            copy = self.buffer()
            self.lines.append(f"{copy}[j] = v;")
            t = self.end(source, False, inside) and copy
        else:
            t = self.end(source, store, inside)
        self.free_row_names()
        after = [line.replace("t[j]", f"{t}[j]") for line in after]
        if step.op in ROW_SCALAR:
            self.lines += after
            self.spend(source)
            self.scalars[step.index] = "s"
            return
        for key, sign in (("weight", "*"), ("bias", "+")):
            if step.args.get(key) is not None:
                after[-1] += f" {sign} {self.program.leaves[step.args[key]].name}[j]"
        self.lines += [*after[:-1], f"EACH {{ real v = {after[-1]};"]
        self.spend(source, step.args.get("weight"), step.args.get("bias"))
        self.current, self.loop = step.index, "each"

    def finish(self) -> None:
        output, vector = self.program.output, self.program.vector
        mode = "each" if vector else "row"
        if self.current != output or self.loop != mode:
            self.close()
            self.open(output, vector)
        self.lines += ["o[i + j] = v; } } }" if vector else "o[i / n] = v; } } }"]


def reduction(step: Step) -> tuple[str, bool, list[str]]:
    """A reduction to `s`: its line inside the loop, whether the row must be in `t`, its lines after the loop."""
    op, args = step.op, step.args
    if op in ("sum", "mean"):
        return "c += v;", False, [f"s = c{' / n' if op == 'mean' else ''}; c = 0;"]
    if op in ("amax", "amin"):
        sign = "" if op == "amax" else "-"
        return f"d = fmaxf(d, {sign}v);", False, [f"s = {sign}d; d = -1e38f;"]
    if op == "vector_norm" and args.get("ord") in (1, 2):
        return ("c += v * v;", False, ["s = sqrtf(c); c = 0;"]) if args["ord"] == 2 else ("c += fabsf(v);", False, ["s = c; c = 0;"])
    if op == "logsumexp":
        return "d = fmaxf(d, v);", True, ["a = d; d = -1e38f;", "EACH c += expf(t[j] - a);", "s = logf(c) + a; c = 0;"]
    if op in ("var", "std"):
        below = "n" if not args.get("correction", 1) else f"(n - {number(args.get('correction', 1))})"
        last = f"c / {below}" if op == "var" else f"sqrtf(c / {below})"
        return "c += v;", True, ["a = c / n; c = 0;", "EACH c += (t[j] - a) * (t[j] - a);", f"s = {last}; c = 0;"]
    raise Unsupported(f"{op}: got {args}, wanted a reduction that the teacher knows")


def row_vector(step: Step) -> tuple[str, bool, list[str]]:
    """As `reduction` for an operator whose result is a row again; the last line is the expression of its element."""
    if step.op == "softmax":
        return "d = fmaxf(d, v);", True, ["a = d; d = -1e38f;", "EACH c += t[j] = expf(t[j] - a);", "s = c; c = 0;", "t[j] / s"]
    if step.op == "log_softmax":
        return "d = fmaxf(d, v);", True, ["a = d; d = -1e38f;", "EACH c += expf(t[j] - a);", "s = logf(c) + a; c = 0;", "t[j] - s"]
    eps = number(step.args["eps"])
    if step.op == "layer_norm":
        spread = "EACH c += (t[j] - a) * (t[j] - a);"
        return "c += v;", True, ["a = c / n; c = 0;", spread, f"s = sqrtf(c / n + {eps}); c = 0;", "(t[j] - a) / s"]
    root = f"sqrtf(c / n + {eps})" if step.op == "rms_norm" else f"fmaxf(sqrtf(c), {eps})"
    return "c += v * v;", True, [f"s = {root}; c = 0;", "t[j] / s"]


def kernel(program: Program, schedule: Schedule, *, says: bool = False) -> str:
    """kernels/kernel.cpp: one function `run(inputs and parameters, o, m, n)` with m numbers in rows of n.

    says: each operator's lines stand behind a comment that repeats what the task's listing says of it.
    """
    lines = [
        f"typedef {schedule.real} real;",
        'extern "C" void run(',
        *(f"const float* {leaf.name}," for leaf in program.leaves.values()),
        "float* o, long m, long n) {",
        "real t[n], u[n], s, a, p, q, d = -1e38f;",
        "double c = 0;",  # a float sum over a long row is off by more than the reference is
        "for (long i = 0; i < m; i += n) {",
        *Writer(program, schedule, says).write(),
    ]
    return HEADER + "\n".join(lines) + "\n"


def module(program: Program, source: str) -> str:
    """model_new.py: ModelNew with the parameters of Model, created by the same statements, and the call."""
    arguments = [leaf.python for leaf in program.leaves.values()]
    inputs = [name for name in arguments if not name.startswith("self.")]
    main = program.main
    shape = f"torch.empty_like({main})" if program.vector else f"torch.empty({main}.shape[:-1]{' + (1,)' if program.keepdim else ''})"
    owners = {name.split(".")[1] for name in arguments if name.startswith("self.")}
    constants, init = constructor(source, owners)
    lines = ["import torch, cuda_extension", "from torch import nn", *constants, "class ModelNew(nn.Module):", *init]
    lines += [f"    def forward(self, {', '.join(inputs)}):", f"        o = {shape}"]
    lines += ["        cuda_extension.run(", *(f"            {name}," for name in arguments)]
    lines += [f"            o, {main}.numel(), {main}.shape[-1])", "        return o"]
    return "\n".join(lines) + "\n"
