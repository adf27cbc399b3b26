"""Every operator under every schedule is right against eager; planted mistakes are mistakes, and the teacher repairs them."""

import asyncio
import ctypes
import dataclasses
import re
import subprocess
import sys
import types
from random import Random

import pytest

from data.operators import CATALOGUE
from data.records import Baselines, Task, ToolResult
from policy.episode import play
from policy.prompt import Prompt, parse
from policy.teacher import SCHEDULES, Teacher, plant, sessions_text

CHAINS = {
    "two_norms": "x = F.layer_norm(x, (48,), self.weight, self.bias, 1e-5)\n        return F.rms_norm(x * 2.0, (48,), self.weight, 1e-6)",
    "shared_row": "h = torch.tanh(x)\n        return torch.softmax(h, dim=-1) * h",
    "shared_scalar": "m = x.mean(-1, keepdim=True)\n        return (x - m) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()",
    "scalar_then_row": "s = (x * x).sum(-1, keepdim=True).sqrt()\n        return torch.exp(-torch.abs(x / s)) + s",
    "branches": "a = torch.sigmoid(x)\n        b = torch.relu(y) + self.bias\n        return a * b - x",
    "row_input": "return (x + y.sum(-1, keepdim=True)).amax(-1) * 0.5",
    "logsumexp": "return torch.logsumexp(x, -1) - x.std(-1)",
    "identity_then_norm": "return F.normalize(x, dim=-1)",
    "two_reductions": "return x.amax(-1) - x.amin(-1)",
}
SQUARE = "x = x * self.weight\n        return torch.maximum(x, self.bias)"


def task_of(forward, shape=(6, 48)):
    return Task(
        origin="user",
        source=f"""import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn({shape[-1]}))
        self.bias = nn.Parameter(torch.randn({shape[-1]}))

    def forward(self, x, y):
        {forward}


def get_inputs():
    return [torch.randn{shape}, torch.randn{shape}]


def get_init_inputs():
    return []
""",
    )


@pytest.fixture(scope="module")
def tasks():
    """One small task for every spelling of every operator."""
    from data.writing import Step, write_source

    made = {}
    for name, operator in CATALOGUE.items():
        for number, spelling in enumerate(operator.spellings):
            for kind in operator.operand or (None,):
                rng = Random(f"{name} {number}")
                step = Step(operator=operator, spelling=spelling, args=operator.arguments(rng, (6, 48)), operand=kind, shape=(6, 48))
                made[f"{name}/{number}/{kind}"] = Task(source=write_source(rng, (step,), (6, 48)), origin="synthetic")
    made |= {name: task_of(text) for name, text in CHAINS.items()} | {"square": task_of(SQUARE, (48, 48))}
    return made


def library(kernels, folder):
    """All kernels as one library: each in its own namespace with its own function name."""
    from sandbox.build import FLAGS, LIBRARIES

    parts = []
    for number, text in enumerate(kernels):
        body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        parts.append(f"namespace k{number} {{\n{body.replace('void run(', f'void run{number}(')}\n}}")
    head = "\n".join(line for line in kernels[0].splitlines() if line.startswith("#"))
    (folder / "all.cpp").write_text(head + "\n" + "\n".join(parts))
    subprocess.run(["g++", *FLAGS, "-o", folder / "all.so", folder / "all.cpp", *LIBRARIES], check=True)
    return ctypes.CDLL(str(folder / "all.so"))


def run_module(text, function, model, inputs, initial):
    """`ModelNew` of a module text with the weights of `model`, its kernel being `function`."""

    def call(*args):
        function(*[ctypes.c_long(a) if isinstance(a, int) else ctypes.c_void_p(a.data_ptr()) for a in args])

    module = types.ModuleType("cuda_extension")
    module.run = call
    sys.modules["cuda_extension"] = module
    namespace = {}
    exec(text, namespace)
    new = namespace["ModelNew"](*initial)
    new.load_state_dict(model.state_dict())
    return new(*inputs)


def test_every_operator_is_right_under_every_schedule(tasks, tmp_path):
    import torch

    teacher = Teacher(0)
    written = [(name, t, teacher.versions(t, Random(0), s)) for name, t in tasks.items() for s in SCHEDULES]
    built = library([w.candidate.files["kernels/kernel.cpp"] for _, _, w in written], tmp_path)
    wrong = []
    with torch.no_grad():
        for number, (name, task, version) in enumerate(written):
            torch.manual_seed(number)
            space = {}
            exec(task.source, space)
            initial = space["get_init_inputs"]()
            model = space["Model"](*initial)
            for value in model.parameters():
                value.copy_(torch.randn_like(value))
            inputs = [x * 3 for x in space["get_inputs"]()]
            wanted = model(*inputs)
            got = run_module(version.candidate.files["model_new.py"], built[f"run{number}"], model, inputs, initial)
            if got.shape != wanted.shape or not torch.allclose(got, wanted, atol=1e-5, rtol=1e-4):
                wrong.append((name, version.plan))
    assert not wrong


def test_unknown_graphs_are_refused_with_a_reason():
    teacher = Teacher(0)
    for forward, says in [
        ("return x.sum(0)", "dim"),
        ("return x @ y.t()", "same rows"),
        ("return x, y", "outputs"),
        ("return torch.cumsum(x, -1)", "cumsum"),
        ("return x.reshape(48, 6)", "rows"),
    ]:
        with pytest.raises(ValueError, match=says):
            teacher.write(task_of(forward), Random(0))
    with pytest.raises(ValueError, match="wanted cuda_extension on cpp"):
        Teacher(0, format="triton", backend="cuda")


def test_same_seed_same_text_and_schedules_vary(tasks):
    some = list(tasks.values())[:40]
    prompt = Prompt(None, format="cuda_extension", backend="cpp", max_turns=3)
    first, second, other = (list(sessions_text(some, seed, prompt=prompt)) for seed in (1, 1, 2))
    assert first == second != other and len(first) == 40
    assert {text.splitlines()[0] for _, text in first} == {"plan: fused float", "plan: fused double"}
    assert all(opening[-1].text == t.source for (opening, _), t in zip(first, some, strict=True))


def test_first_action_is_parsed_into_its_files(tasks):
    prompt = Prompt(None, format="cuda_extension", backend="cpp", max_turns=3)
    task = tasks["two_norms"]
    ((_, text),) = sessions_text([task], 0, prompt=prompt)
    calls = parse(text)
    assert [c.tool for c in calls] == ["write", "write", "verify"]
    assert {c.args["path"] for c in calls[:2]} == {"kernels/kernel.cpp", "model_new.py"}


def test_every_kind_of_mistake_changes_one_file(tasks):
    teacher, kinds = Teacher(0), set()
    for number, task in enumerate(tasks.values()):
        right = teacher.write(task, Random(number))
        wrong = plant(right, Random(number))
        changed = [path for path in right.files if right.files[path] != wrong.files[path]]
        assert len(changed) == 1 and right.files.keys() == wrong.files.keys()
        kinds.add((changed[0], len(wrong.files[changed[0]].splitlines()) - len(right.files[changed[0]].splitlines())))
    assert kinds == {(path, lines) for path in ("kernels/kernel.cpp", "model_new.py") for lines in (0, -1)}


class Judge:
    """Says correct of the teacher's own files and what it is told of others."""

    def __init__(self, task, speed="2x"):
        self.task, self.files, self.speed, self.final = task, {}, speed, None

    async def run(self, tool, args):
        if tool == "write":
            self.files[args["path"]] = args["content"] + "\n"
            return ToolResult(text="ok")
        if tool == "submit":
            return ToolResult(text="submitted", done=True)
        own = any(self.files == Teacher(0).versions(self.task, Random(0), s).candidate.files for s in SCHEDULES)
        return ToolResult(text=f"correct: 1 ms, {self.speed} eager" if own else "incorrect: output 0: got 1, wanted 2")

    def candidate(self):
        return None

    async def judge(self):
        from data.records import Verdict

        return Verdict(
            status="incorrect", reason="not judged here", task=self.task.id, candidate="c", backend="cpp", policy="libraries_allowed"
        )


def session(task, judge, **more):
    teacher = Teacher(3)
    prompt = Prompt(None, format="cuda_extension", backend="cpp", max_turns=3)
    settings = {"max_turns": 3, "max_new_tokens": 500, "context": 4000, "checkpoint": "teacher", "stage": "s", "round": 0, "sample": 0}
    return asyncio.run(play(task, teacher.session(task, 1, **more), judge, prompt=prompt, seed=0, reward=lambda v: 0.0, **settings))


def test_planted_mistake_is_not_trainable_and_its_repair_is(tasks):
    got = session(tasks["two_norms"], Judge(tasks["two_norms"]), mistakes=1.0)
    assert [t.trainable for t in got.turns] == [False, True, True] and got.stop == "done"
    assert got.turns[0].observation.endswith("wanted 2") and got.turns[1].observation.startswith("ok\ncorrect")
    assert [c.tool for c in got.turns[1].tool_calls] == ["write", "verify"]


def test_right_and_fast_is_submitted_at_once_and_slow_is_rewritten(tasks):
    task = tasks["shared_row"]
    got = session(task, Judge(task), mistakes=0.0)
    assert [t.trainable for t in got.turns] == [True, True] and got.turns[1].tool_calls[0].tool == "submit"
    teacher_seed = next(s for s in range(20) if "double" in plan_of(task, s))
    slow = asyncio.run(_play(task, Judge(task, speed="0.8x"), teacher_seed))
    assert "fused float" in slow.turns[1].text and slow.turns[2].tool_calls[0].tool == "submit"


def plan_of(task, seed):
    generate = Teacher(0).session(task, seed, mistakes=0.0)
    prompt = Prompt(None, format="cuda_extension", backend="cpp", max_turns=3)
    return asyncio.run(generate(prompt.opening(task), max_new_tokens=1, seed=0)).text.splitlines()[0]


async def _play(task, judge, seed):
    prompt = Prompt(None, format="cuda_extension", backend="cpp", max_turns=3)
    settings = {"max_turns": 3, "max_new_tokens": 500, "context": 4000, "checkpoint": "teacher", "stage": "s", "round": 0, "sample": 0}
    return await play(task, Teacher(0).session(task, seed, mistakes=0.0), judge, prompt=prompt, seed=0, reward=lambda v: 0.0, **settings)


def test_names_of_inputs_never_meet_those_of_the_kernel():
    source = re.sub(r"\by\b", "s", task_of("return (x + y).sum(-1)").source)
    files = Teacher(0).write(Task(source=source, origin="user"), Random(0)).files
    assert "const float* s2" in files["kernels/kernel.cpp"] and "x,\n            s,\n            self.weight," in files["model_new.py"]


def test_sessions_play_through_the_real_judge(tasks):
    import torch

    from policy.reward import robust
    from sandbox.cpp import cpu_model
    from sandbox.pool import Pool
    from sandbox.workspace import FolderWorkspace

    machine = {"cpu": cpu_model(), "torch": torch.__version__, "threads": 1}
    task = dataclasses.replace(tasks["two_norms"], baselines=Baselines(eager_ms=1.0, compile_ms=1.0, environment=machine))
    prompt = Prompt(None, format="cuda_extension", backend="cpp", max_turns=3)

    async def both():
        async with Pool(backend="cpp", slots=1) as pool:
            found = []
            for mistakes in (0.0, 1.0):
                workspace = FolderWorkspace(task, pool=pool, format="cuda_extension")
                settings = {
                    "max_turns": 3,
                    "max_new_tokens": 500,
                    "context": 4000,
                    "checkpoint": "t",
                    "stage": "s",
                    "round": 0,
                    "sample": 0,
                }
                generate = Teacher(0).session(task, 5, mistakes=mistakes)
                found.append(await play(task, generate, workspace, prompt=prompt, seed=0, reward=robust, **settings))
            return found

    straight, mended = asyncio.run(both())
    assert straight.verdict.correct and mended.verdict.correct and straight.reward >= 1.0
    assert not mended.turns[0].trainable and "\ncorrect" not in mended.turns[0].observation
    assert mended.stop == "done"
