"""The reference of a task, its inputs and its expected outputs, in memory that no candidate reaches.

Inputs come from the operating system's entropy for every draw: the task's own distribution with a few values far outside it
(needles), and stress distributions that a shortcut valid only on the own one does not survive. Parameters and buffers are
randomised within their meaning. The fp64 oracle tells how much rounding noise is honest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import sys
import types
from typing import Any

from data.records import Task
from sandbox import compare, timing
from sandbox.backends import Limits, TaskInvalid

KINDS = ("own", "signed", "scaled", "shifted", "heavy")
NEEDLES = 4
"""Elements of each floating input that a draw replaces by far values."""
DRAWS = 6
"""Attempts at inputs on which the reference is exact enough to be judged by."""
BANK_BYTES = 640 << 20
"""Cases kept for the next candidate of the same task; a candidate sees each at most once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape and layout of one tensor; `span` elements of storage from the first to the last."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    span: int
    nbytes: int

    @classmethod
    def of(cls, tensor) -> TensorSpec:
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
        return cls(
            shape=tuple(tensor.shape), stride=tuple(tensor.stride()), dtype=tensor.dtype, span=span, nbytes=span * tensor.element_size()
        )


@dataclasses.dataclass(kw_only=True)
class Case:
    """One secret question with its answer. `relative[i]` is the relative tolerance of output i; its elementwise form is made when it
    is asked for, since cases are kept by the hundred."""

    kind: str
    inputs: list
    expected: list
    relative: list
    needles: bool = False

    @property
    def nbytes(self) -> int:
        tensors = [t for t in [*self.inputs, *self.expected] if hasattr(t, "element_size")]
        return sum(t.numel() * t.element_size() for t in tensors)


def reseed() -> None:
    """Generators restart from entropy before every draw: outputs of one draw tell nothing about the next."""
    import torch

    torch.manual_seed(int.from_bytes(os.urandom(8), "little"))
    random.seed(os.urandom(16))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))


def load_source(source: str, name: str = "task_reference") -> types.ModuleType:
    """Run a task's source as a module. Raises TaskInvalid."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    except Exception as error:
        raise TaskInvalid(f"the task does not load: {type(error).__name__}: {error}") from error
    for wanted in ("Model", "get_inputs", "get_init_inputs"):
        if not hasattr(module, wanted):
            raise TaskInvalid(f"the task has no {wanted}")
    return module


class Reference:
    """Reference of a task on a device at a precision. Raises TaskInvalid where the task cannot be judged.

    `inputs` holds a TensorSpec for each tensor and the value itself for anything else; `outputs` a TensorSpec each.
    """

    def __init__(self, task: Task, *, device: str = "cpu", precision: str = "fp32", limits: Limits | None = None):
        import torch

        self.task, self.device, self.precision = task, device, precision
        self.low = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        self.module = load_source(task.source)
        self.train = task.mode == "train" or getattr(self.module, "MODE", "eval") == "train"
        self.bank: dict[str, list[Case]] = {kind: [] for kind in KINDS}
        self.bank_bytes = 0
        with self._blame("the reference cannot be constructed"):
            reseed()
            with torch.device(device):
                self.init_inputs = list(self.module.get_init_inputs())
                self.model = self.module.Model(*self.init_inputs)
            self.model = self.model.to(device, self.low or torch.float32).train(self.train)
            self.state = {name: _randomised(name, value) for name, value in self.model.state_dict().items()}
            self.model.load_state_dict(self.state)
        with self._blame("the reference does not run"):
            first = self._fresh()
            kept = [v.clone() if isinstance(v, torch.Tensor) else v for v in first]
            self.mutates = False
            outputs, self.structure = self._forward(self.model, first)
            self.mutates = any(
                not torch.equal(a, b) for a, b in zip(first, kept, strict=True) if isinstance(a, torch.Tensor) and not bool(b.isnan().any())
            )
            first = kept
        self.inputs = [TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for v in first]
        self.outputs = [TensorSpec.of(v) for v in outputs]
        self.input_bytes = sum(s.nbytes for s in self.inputs if isinstance(s, TensorSpec))
        self.output_bytes = sum(s.nbytes for s in self.outputs)
        limits = limits or Limits()
        if 4 * (self.input_bytes + self.output_bytes) > limits.memory_bytes:
            raise TaskInvalid(
                f"does not fit: {self.input_bytes + self.output_bytes} bytes of inputs and outputs, a quarter of {limits.memory_bytes} allowed"
            )
        if not self.output_bytes:
            raise TaskInvalid("the reference returns nothing")
        self.relative: dict[str, list[float]] = {}
        self.clean = all(map(compare.all_finite, outputs))
        with self._blame("the reference does not run"):
            self._repeats(first, outputs)
            self._survey(first)
        self.kinds = tuple(self.relative)

    @contextlib.contextmanager
    def _blame(self, what: str):
        try:
            yield
        except (TaskInvalid, timing.CallTimeout):
            raise
        except Exception as error:
            raise TaskInvalid(f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error

    def _fresh(self) -> list:
        import torch

        reseed()
        with torch.device(self.device):
            values = list(self.module.get_inputs())
        for position, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                value = values[position] = value.detach()
                if value.is_complex() or value.layout is not torch.strided:
                    raise TaskInvalid(f"input {position}: got a {value.dtype} {value.layout} tensor, wanted a real strided one")
                if self.low is not None and value.is_floating_point():
                    values[position] = value.to(self.low)
            elif not isinstance(value, int | float | str | bool | type(None)):
                raise TaskInvalid(f"input {position}: got {type(value).__name__}, wanted a tensor or a plain value")
        return values

    def _forward(self, model, inputs: list) -> tuple[list, str]:
        import torch

        with torch.no_grad():
            result = model(*[v.clone() if self.mutates and isinstance(v, torch.Tensor) else v for v in inputs])
        structure = "tensor" if isinstance(result, torch.Tensor) else type(result).__name__
        if structure not in ("tensor", "tuple", "list"):
            raise TaskInvalid(f"output: got {structure}, wanted a tensor or a tuple or list of tensors")
        outputs = [result] if structure == "tensor" else list(result)
        for number, value in enumerate(outputs):
            if not isinstance(value, torch.Tensor) or value.is_complex():
                raise TaskInvalid(f"output {number}: got {type(value).__name__}, wanted a real tensor")
        return outputs, structure

    def _repeats(self, first: list, outputs: list) -> None:
        again, _ = self._forward(self.model, first)
        case = self._case("own", first, outputs, [compare.LOWEST.get(compare.name_of(v.dtype), 0.0) for v in outputs])
        problem = compare.difference(again, case)
        if problem:
            raise TaskInvalid(f"the reference is random: the same inputs gave two answers ({problem})")
        if not any(bool(v.isfinite().any()) for v in outputs):
            raise TaskInvalid("degenerate: the reference's output has no finite value")
        other, _ = self._forward(self.model, self._fresh())
        if compare.difference(other, case) is None:
            raise TaskInvalid("degenerate: the output does not depend on the inputs within tolerance")

    def _survey(self, first: list) -> None:
        """Which distributions can be judged, and at what tolerance: the reference against itself in fp64."""
        self.high = high = self._high_model()
        for kind in KINDS:
            floors = []
            for attempt in range(2):
                inputs = first if kind == "own" and not attempt else self._transform(self._fresh(), kind)
                low, _ = self._forward(self.model, inputs)
                if kind != "own" and self.clean and not all(map(compare.all_finite, low)):
                    floors = None
                    break
                exact = self._exact(high, inputs) if high is not None else low
                floors.append([compare.noise(a, b) if a.is_floating_point() else 0.0 for a, b in zip(low, exact, strict=True)])
            if floors is None:
                continue
            relative = [
                compare.relative_tolerance(spec.dtype, max(f)) for spec, f in zip(self.outputs, zip(*floors, strict=True), strict=True)
            ]
            if None not in relative:
                self.relative[kind] = relative
            elif kind == "own":
                raise TaskInvalid("the reference's own rounding noise is larger than any tolerance that tells right from wrong")

    def _high_model(self):
        import copy

        import torch

        try:
            return copy.deepcopy(self.model).to(torch.float64)
        except (timing.CallTimeout, torch.OutOfMemoryError):
            raise
        except Exception:  # a module that cannot be copied has no oracle; the lowest tolerance stands
            return None

    def _exact(self, high, inputs: list) -> list:
        import torch

        widened = [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in inputs]
        try:
            outputs, _ = self._forward(high, widened)
            return outputs
        except (timing.CallTimeout, torch.OutOfMemoryError):
            raise
        except Exception:  # code that pins fp32 inside runs only there
            outputs, _ = self._forward(self.model, inputs)
            return outputs

    def _transform(self, inputs: list, kind: str) -> list:
        """Floating tensors only: integers are labels or indices, and have no other meaning."""
        import torch

        changed = []
        for value in inputs:
            if kind == "own" or not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
                changed.append(value)
                continue
            spread = float(value.float().std()) if value.numel() > 1 else 1.0
            spread = spread if 0 < spread < float("inf") else 1.0
            if kind == "signed":
                new = value * (torch.randint(0, 2, value.shape, device=value.device) * 2 - 1)
            elif kind == "scaled":
                new = value * random.choice((0.03, 4.0, 16.0))
            elif kind == "shifted":
                new = value + random.choice((-1, 1)) * random.uniform(2.0, 6.0) * spread
            else:
                new = value * torch.randn(value.shape, device=value.device).abs_().mul_(1.5).exp_()
            changed.append(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(new))
        return changed

    def _needled(self, inputs: list) -> list:
        import torch

        changed = []
        for value in inputs:
            if (
                isinstance(value, torch.Tensor)
                and value.is_floating_point()
                and value.numel() >= 64
                and TensorSpec.of(value).span == value.numel()
            ):
                value = value.clone()
                spread = float(value.reshape(-1)[:4096].float().std())
                for _ in range(NEEDLES):
                    place = tuple(random.randrange(n) for n in value.shape)
                    far = random.uniform(8.0, 24.0) * spread
                    value[place] = far if float(value[place]) >= 0 else -far
            changed.append(value)
        return changed

    def _case(self, kind: str, inputs: list, outputs: list, relative: list[float], needles: bool = False) -> Case:
        outputs = [v.contiguous().clone() for v in outputs]
        return Case(
            kind=kind,
            inputs=inputs,
            expected=outputs,
            relative=relative,
            needles=needles,
        )

    def draw(self, kind: str = "own") -> Case:
        """A question nobody has seen: inputs from entropy, needles in where the reference stands them, fp64 answers.

        The tolerance is the distribution's, or wider where the reference itself errs more on just these inputs. Inputs on which
        it errs too much to tell right from wrong are drawn anew.
        """
        for attempt in range(DRAWS):
            plain = self._transform(self._fresh(), kind)
            for needles in (True, False) if attempt == 0 else (False,):
                inputs = self._needled(plain) if needles else plain
                low, _ = self._forward(self.model, inputs)
                if self.clean and not all(map(compare.all_finite, low)):
                    continue
                expected, relative = self._answers(inputs, low, kind)
                if None not in relative:
                    return self._case(kind, inputs, expected, relative, needles)
        highest = [compare.HIGHEST.get(compare.name_of(v.dtype), 0.0) for v in low]
        return self._case(kind, inputs, low, highest, needles)

    def _answers(self, inputs: list, low: list, kind: str) -> tuple[list, list[float | None]]:
        """The oracle's outputs in the dtypes of the reference's, `low`, and the tolerance of each; None where the reference errs too much."""
        if self.high is None:
            return low, self.relative[kind]
        expected, relative = [], []
        for mine, exact, allowed in zip(low, self._exact(self.high, inputs), self.relative[kind], strict=True):
            if not mine.is_floating_point():
                expected.append(mine)
                relative.append(allowed)
                continue
            rounded = exact.to(mine.dtype)
            if not (compare.all_finite(mine) and compare.all_finite(rounded)):
                # Where one of the two overflows, what the reference gives at its own precision is right
                rounded = rounded.where(mine.isfinite() & rounded.isfinite(), mine)
            expected.append(rounded)
            relative.append(allowed if compare.well_within(mine, rounded, allowed) else self._widened(mine, exact, allowed))
        return expected, relative

    @staticmethod
    def _widened(mine, exact, allowed: float) -> float | None:
        found = compare.relative_tolerance(mine.dtype, compare.noise(mine, exact))
        return None if found is None else max(found, allowed)

    def cases(self, kind: str):
        """Endless questions of one kind in secret order: first those drawn for earlier candidates (each candidate lives
        alone and sees none twice), then new ones."""
        known = list(self.bank[kind])
        random.Random(os.urandom(16)).shuffle(known)
        yield from known
        while True:
            case = self.draw(kind)
            if self.bank_bytes + case.nbytes <= BANK_BYTES:
                self.bank[kind].append(case)
                self.bank_bytes += case.nbytes
            yield case

    def controls(self) -> dict[str, bool]:
        """Three answers that do no work, each tried on all distributions: True where it was seen through."""
        import torch

        questions = [self.draw(kind) for kind in self.kinds for _ in range(2)]
        other = self.draw("own").expected
        answers = {"zeros": [[torch.zeros_like(v) for v in q.expected] for q in questions]}
        answers["constant"] = [
            [
                torch.full_like(v, float(v.double().nan_to_num().mean()))
                if v.is_floating_point()
                else torch.full_like(v, v.flatten()[0].item())
                for v in other
            ]
            for _ in questions
        ]
        seen = {name: any(compare.difference(got, q) for got, q in zip(gots, questions, strict=True)) for name, gots in answers.items()}
        fitting = [
            i
            for i, s in enumerate(self.inputs)
            if isinstance(s, TensorSpec) and s.shape == self.outputs[0].shape and s.dtype == self.outputs[0].dtype
        ]
        copies = [any(compare.difference([q.inputs[i], *q.expected[1:]], q) for q in questions) for i in fitting]
        return seen | {"copy": all(copies), "repeatable": True}


def _randomised(name: str, value):
    """A parameter or buffer away from its initial value: affine ones and zeros, running statistics, weights.

    Integers and constant tables stay; what was positive stays positive.
    """
    import torch

    if not value.is_floating_point() or not value.numel():
        return value.clone()
    noise = torch.randn(value.shape, device=value.device).to(value.dtype)
    if "running_var" in name or bool((value > 0).all()):
        return value * (0.2 * noise).exp()
    if "running_mean" in name or bool((value == 0).all()):
        return value + 0.2 * noise
    return value * (1 + 0.3 * (2 * torch.rand(value.shape, device=value.device).to(value.dtype) - 1))
