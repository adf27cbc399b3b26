"""Tasks and candidates written in a line or two, and many of them judged at once, for test_cases.py and test_faults.py."""

import asyncio
import dataclasses
import textwrap

import conftest

from data.records import Baselines, Candidate, Task, Verdict
from sandbox.pool import Pool

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def task(
    forward: str, inputs: str, *, arguments: str = "x", fields: str = "pass", init: str = "", mode: str = "eval", precision: str = "fp32", head: str = ""
) -> Task:
    """A task from the bodies of forward and __init__ and the lists of inputs and constructor arguments; no compiled baseline is wanted."""
    import torch

    from sandbox.cpp import cpu_model

    source = (
        f"{HEAD}{head}\n\nclass Model(nn.Module):\n    def __init__(self, *args):\n        super().__init__()\n{_body(fields)}\n"
        f"    def forward(self, {arguments}):\n{_body(forward)}\n\ndef get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return [{init}]\n"
    )
    known = Baselines(eager_ms=1.0, compile_ms=1.0, environment={"cpu": cpu_model(), "torch": torch.__version__, "threads": 1})
    return Task(source=source, origin="user", mode=mode, precision=precision, baselines=known)


def module(forward: str, *, arguments: str = "x", fields: str = "pass", init: str = "*args", head: str = "", base: str = "nn.Module") -> Candidate:
    """A candidate of one file, from the bodies of forward and __init__."""
    return text(
        f"{HEAD}{head}\n\nclass ModelNew({base}):\n    def __init__(self, {init}):\n        super().__init__()\n{_body(fields)}\n"
        f"    def forward(self, {arguments}):\n{_body(forward)}\n"
    )


def text(source: str) -> Candidate:
    return Candidate(format="load_inline", files={"model_new.py": source})


def light(call: str, kernel: str, *, arguments: str = "x", fields: str = "pass", out: str = "torch.empty_like(x)", head: str = "", file: str = "kernels/kernel.cpp") -> Candidate:
    """A candidate whose extern "C" function is built by the judge; `call` fills `out`."""
    model = module(f"out = {out}\ncuda_extension.{call}\nreturn out", arguments=arguments, fields=fields, head=f"import cuda_extension\n{head}")
    return Candidate(format="cuda_extension", files={**model.files, file: kernel})


def _body(code: str) -> str:
    return textwrap.indent(textwrap.dedent(code).strip("\n"), " " * 8) + "\n"


@dataclasses.dataclass
class Question:
    task: Task
    candidate: Candidate
    policy: str = "mixed"


def ask(questions: dict[str, Question], limits=conftest.LIMITS) -> dict[str, Verdict]:
    """Verdicts by name, two slots at a time, tasks shared."""

    async def run():
        async with Pool(backend="cpp", limits=limits) as pool:

            async def one(name: str, q: Question):
                return name, await pool.judge(q.task, q.candidate, fresh=True, policy=q.policy)

            return dict(await asyncio.gather(*(one(*item) for item in questions.items())))

    return asyncio.run(run())
