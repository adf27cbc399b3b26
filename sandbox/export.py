"""A `plan` as an ordinary Python module: `ModelNew` with CuPy kernels, for those who use the result rather than judge it."""

from __future__ import annotations

import json
import re

from data.records import Candidate, Task
from sandbox.device_code import PRELUDE
from sandbox.expression import Node, python_of
from sandbox.plan import Plan, Shape, Step, parse

_NUMPY_INT = {1: "numpy.bool_", 4: "numpy.int32", 8: "numpy.int64"}
_NUMPY_FLOAT = {4: "numpy.float32", 8: "numpy.float64"}


def export(candidate: Candidate, task: Task | None = None) -> str:
    """Python source with `ModelNew`, same constructor and forward as the task's Model.

    A plan that reads parameters (`p.NAME`) needs `task`: its source is embedded and ModelNew inherits Model's constructor
    and state_dict. Raises PlanError for files that are no plan, ValueError where the task is missing.
    """
    plan = parse(candidate.files)
    parameters = sorted(set(re.findall(r"\bp(?:\.\w+)+", candidate.files["plan.json"])))
    parameters = sorted({re.sub(r"\.(shape|numel|ndim)$", "", name) for name in parameters})
    if parameters and task is None:
        raise ValueError(f"task: got None, wanted the task whose Model has {', '.join(parameters)}")
    writer = _Writer(plan)
    head = [
        '"""Made from a launch plan; needs CuPy and an NVIDIA GPU."""',
        "",
        "import cupy",
        "import numpy",
        "import torch",
        "from torch import nn",
        "",
    ]
    if parameters:
        head += ["# The reference, kept for its constructor and parameters", task.source.rstrip(), ""]
    head += [f"KERNELS = cupy.RawModule(code={_literal(PRELUDE + plan.source)}, options=('-std=c++17',))", ""]
    arguments = ", ".join(f"x{i}" for i in range(writer.inputs()))
    body = ["", f"class ModelNew({'Model' if parameters else 'nn.Module'}):"]
    if not parameters:
        body += ["    def __init__(self, *_):", "        super().__init__()", ""]
    body += ["    @torch.no_grad()", f"    def forward(self, {arguments or '*_'}):"]
    lines = [f"x{i} = x{i}.contiguous() if isinstance(x{i}, torch.Tensor) else x{i}" for i in range(writer.inputs())]
    if parameters:
        lines += ["state = self.state_dict(keep_vars=True)"] + [f"{_spell(p)} = state[{p[2:]!r}].contiguous()" for p in parameters]
    lines += writer.forward()
    return "\n".join([*head, *body, *(f"        {line}" for line in lines), ""])


def _literal(source: str) -> str:
    return "r'''" + source + "'''" if "'''" not in source and not source.endswith(("'", "\\")) else json.dumps(source)


def _spell(name: str) -> str:
    return "p_" + name[2:].replace(".", "_") if name.startswith("p.") else name


class _Writer:
    """Writes the statements of forward; every tensor and integer before its first use."""

    def __init__(self, plan: Plan):
        self.plan, self.lines, self.done = plan, [], set()

    def inputs(self) -> int:
        text = json.dumps(
            [list(map(repr, self.plan.let.values())), repr(self.plan.buffers), repr(self.plan.outputs), repr(self.plan.steps)]
        )
        found = [int(n) for n in re.findall(r"\bx(\d{1,2})\b", text)]
        return max(found, default=-1) + 1

    def forward(self) -> list[str]:
        for name in [*self.plan.buffers, *self.plan.outputs]:
            self.tensor(name)
        steps = [line for step in self.plan.steps for line in self.step(step)]
        result = ", ".join(self.plan.outputs)
        stream = "with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):"
        return [*self.lines, stream, *(f"    {s}" for s in steps), f"return {result}"]

    def expression(self, node: Node) -> str:
        return python_of(node, self.name)

    def name(self, name: str, index: int | None) -> str:
        found = re.fullmatch(r"(.+)\.(shape|numel|ndim)", name)
        if found is not None:
            self.tensor(found[1])
            return {
                "shape": f"{_spell(found[1])}.shape[{index}]",
                "numel": f"{_spell(found[1])}.numel()",
                "ndim": f"{_spell(found[1])}.ndim",
            }[found[2]]
        if name in self.plan.let and name not in self.done:
            self.done.add(name)
            self.lines.append(f"{name} = {self.expression(self.plan.let[name])}")
        return name

    def tensor(self, name: str) -> str:
        shape: Shape | None = self.plan.buffers.get(name) or self.plan.outputs.get(name)
        if shape is not None and name not in self.done:
            self.done.add(name)
            if shape.like is not None:
                self.lines.append(f"{name} = torch.empty_like({self.tensor(shape.like)})")
            else:
                dims = ", ".join(self.expression(d) for d in shape.dims)
                if shape.view is not None:
                    self.lines.append(f"{name} = {self.tensor(shape.view)}.view([{dims}])")
                else:
                    device = "device='cuda'"
                    self.lines.append(f"{name} = torch.empty([{dims}], dtype=torch.{shape.dtype}, {device})")
        return _spell(name)

    def step(self, step: Step) -> list[str]:
        o = step.options
        if step.kind == "kernel":
            return self.launch(o)
        if step.kind == "copy":
            return [f"{self.tensor(o['to'])}.copy_({self.tensor(o['from'])}.view_as({self.tensor(o['to'])}))"]
        if step.kind == "fill":
            return [f"{self.tensor(o['to'])}.fill_({o['value']!r})"]
        if step.kind == "conv":
            bias = self.tensor(o["bias"]) if o["bias"] else "None"
            dims = f"{o['stride']}, {o['padding']}, {o['dilation']}"
            zeros = [0] * len(o["stride"])
            x, w = self.tensor(o["x"]), self.tensor(o["w"])
            return [f"{self.tensor(o['out'])}.copy_(torch.convolution({x}, {w}, {bias}, {dims}, False, {zeros}, {o['groups']}))"]
        a = self.tensor(o["a"]) + (".transpose(-1, -2)" if o["trans_a"] else "")
        b = self.tensor(o["b"]) + (".transpose(-1, -2)" if o["trans_b"] else "")
        out = self.tensor(o["out"])
        if o["alpha"] == 1.0 and o["beta"] == 0.0:
            return [f"torch.matmul({a}, {b}, out={out})"]
        return [
            f"{out}.copy_({o['alpha']!r} * torch.matmul({a}, {b}) + {o['beta']!r} * {out})"
            if o["beta"]
            else f"torch.matmul({a}, {b}, out={out}).mul_({o['alpha']!r})"
        ]

    def launch(self, o: dict) -> list[str]:
        grid = ", ".join(self.expression(n) for n in o["grid"])
        block = ", ".join(self.expression(n) for n in o["block"])
        shared = self.expression(o["shared"])
        args = []
        for arg, parameter in zip(o["args"], self.plan.kernels[o["kernel"]], strict=True):
            if parameter.kind == "pointer":
                args.append(f"{self.tensor(arg)}.data_ptr()")
            elif parameter.kind == "int":
                args.append(f"{_NUMPY_INT[parameter.bytes]}({self.expression(arg)})")
            else:
                args.append(f"{_NUMPY_FLOAT[parameter.bytes]}({arg})")
        lines = [f"kernel = KERNELS.get_function({o['kernel']!r})"]
        if o["shared"] != ("int", 0):
            lines.append(f"kernel.max_dynamic_shared_size_bytes = {shared}")
        return [*lines, f"kernel(({grid},), ({block},), ({', '.join(args)}{',' if args else ''}), shared_mem={shared})"]
