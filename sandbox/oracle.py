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
from sandbox.structure import flatten

KINDS = ("own", "signed", "small", "scaled", "shifted", "heavy", "unit")
"""Distributions of a question. signed: random signs, half of the rows sorted. unit: magnitudes near one, where products neither vanish nor
overflow. The others as they say; structural zeros and symmetry of an input are kept by all."""
NEEDLES = 4
"""Elements of each floating input that a draw replaces by far values."""
DRAWS = 6
"""Attempts at inputs on which the reference is exact enough to be judged by."""
NUDGES = 2
"""How often a question's inputs are moved by an ulp, to see which elements of the answer that decides."""
LEAN, LEANS = 2.0**-52, 1 << 26
"""Equal elements are told apart by so much of their value a position; positions beyond LEANS begin anew, so that no fp32 value reaches the next."""
UNDECIDED = 0.01
"""Largest share of an output that may depend on such an ulp; what is beyond is drawn anew."""
STRUCTURE = 0.1
"""An input with a larger share of exact zeros has them for a reason (triangular, masked, sparse)."""
TWINS, TWIN_ROWS = 0.25, 8
"""Share of the new own questions that are the first one but for so many rows: who knows a question by its first values, its sum or its pointer
gives a stale answer. Too few to be a median's matter for who compares every element and answers the difference only."""
BANK_BYTES = 640 << 20
"""Cases kept for the next candidate of the same task, where the backend says nothing else; a candidate sees each at most once."""


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
    """One secret question with its answer. `after`: the inputs as the reference leaves them, where it changes them."""

    kind: str
    inputs: list
    expected: list
    tolerance: list[compare.Tolerance]
    needles: bool = False
    after: list | None = None

    @property
    def nbytes(self) -> int:
        tensors = [t for t in [*self.inputs, *self.expected, *(self.after or ())] if hasattr(t, "element_size")]
        return sum(t.numel() * t.element_size() for t in tensors)


def reseed(seed: int | None = None) -> None:
    """Generators restart from entropy before every draw: outputs of one draw tell nothing about the next. With a seed, from that."""
    import torch

    entropy = os.urandom(16) if seed is None else seed.to_bytes(16, "little")
    seed = int.from_bytes(entropy[:8], "little")
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # before that, torch.manual_seed keeps a traceback of each call
        torch.cuda.manual_seed_all(seed)
    random.seed(entropy)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(entropy[:4], "little"))


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

    def __init__(
        self, task: Task, *, device: str = "cpu", precision: str = "fp32", limits: Limits | None = None, bank_bytes: int = BANK_BYTES
    ):
        import torch

        self.task, self.device, self.precision, self.bank_most = task, device, precision, bank_bytes
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
        self.mutates, self.inputs = False, None
        with self._blame("the reference does not run"):
            first = self._fresh()
            kept = [v.clone() if isinstance(v, torch.Tensor) else v for v in first]
            outputs, self.structure = self._forward(self.model, first)
            outputs = [v.clone() for v in outputs]  # an in-place reference returns its input
            self.mutates = any(compare.changed(a, b) for a, b in zip(first, kept, strict=True))
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
        self.absolute = [compare.typical(v, compare.far_of(v)) if v.is_floating_point() else 0.0 for v in outputs]
        self.tolerances: dict[str, list[compare.Tolerance]] = {}
        self.coarse, self.delicate, self.moved = False, True, False
        self.chooses = any(v.dtype in (torch.int64, torch.int32) for v in outputs)
        self.clean = all(map(compare.all_finite, outputs))
        with self._blame("the reference does not run"):
            self._repeats(first, outputs)
            self._survey(first)
            self.kinds = tuple(self.tolerances)
            self._controls = self._try_controls()
        # Two more forwards for each question pay only where an ulp of the inputs has ever decided something
        self.delicate = self.moved or not all(v.is_floating_point() for v in outputs)
        for name, seen in self._controls.items():
            if not seen:
                raise TaskInvalid(f"degenerate: the control {name!r} passes as a correct answer")

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
                if any(step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True)):
                    value = values[position] = value.contiguous()  # an expanded input has no memory of its own to be drawn into
                if value.is_complex() or value.layout is not torch.strided:
                    raise TaskInvalid(f"input {position}: got a {value.dtype} {value.layout} tensor, wanted a real strided one")
                if self.low is not None and value.is_floating_point():
                    values[position] = value.to(self.low)
            elif not isinstance(value, int | float | str | bool | type(None)):
                raise TaskInvalid(f"input {position}: got {type(value).__name__}, wanted a tensor or a plain value")
        if self.inputs is not None:
            now = [TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for v in values]
            for position, (had, has) in enumerate(zip(self.inputs, now, strict=False)):
                if had != has:
                    raise TaskInvalid(f"input {position} is not the same at every call: got {_brief(has)}, had {_brief(had)}")
            if len(now) != len(self.inputs):
                raise TaskInvalid(f"got {len(now)} inputs, had {len(self.inputs)}")
        return values

    def _forward(self, model, inputs: list) -> tuple[list, str]:
        import torch

        with torch.no_grad():
            result = model(*[v.clone() if self.mutates and isinstance(v, torch.Tensor) else v for v in inputs])
        try:
            outputs, structure = flatten(result, self.low or torch.float32, self.device)
        except TypeError as error:
            raise TaskInvalid(str(error)) from None
        for number, value in enumerate(outputs):
            if value.is_complex():
                raise TaskInvalid(f"output {number}: got {value.dtype}, wanted a real tensor")
        return outputs, structure

    def _repeats(self, first: list, outputs: list) -> None:
        lowest = [compare.Tolerance(relative=compare.LOWEST.get(compare.name_of(v.dtype), 0.0)) for v in outputs]
        case = self._case("own", first, outputs, lowest)
        again, _ = self._forward(self.model, first)
        problem = compare.difference(again, case)
        if problem and self._keeps_state(first, lowest):
            raise TaskInvalid(f"the reference keeps state between calls, so that an answer depends on the calls before it ({problem})")
        if problem:
            raise TaskInvalid(f"the reference is random: the same inputs gave two answers ({problem})")
        other, _ = self._forward(self._instance(self.state), first)
        problem = compare.difference(other, case)
        if problem:
            raise TaskInvalid(f"the reference is random: two instances with the same state_dict differ ({problem})")
        if not any(bool(v.isfinite().any()) for v in outputs):
            raise TaskInvalid("degenerate: the reference's output has no finite value")

    def _keeps_state(self, inputs: list, lowest: list[compare.Tolerance]) -> bool:
        """Whether instances built from one seed answer the same inputs alike, call for call, whatever the generators do meanwhile."""
        seed, answers = int.from_bytes(os.urandom(8), "little"), []
        for model in [self._instance(self.state, seed) for _ in range(2)]:
            reseed()
            answers.append([[v.clone() for v in self._forward(model, inputs)[0]] for _ in range(2)])
        return all(compare.difference(b, self._case("own", inputs, a, lowest)) is None for a, b in zip(*answers, strict=True))

    def _instance(self, state: dict, seed: int | None = None):
        """Another model of the task, as a server builds it."""
        import torch

        reseed(seed)
        with torch.device(self.device):
            model = self.module.Model(*self.init_inputs)
        model = model.to(self.device, self.low or torch.float32).train(self.train)
        model.load_state_dict(state)
        return model

    def _survey(self, first: list) -> None:
        """Which distributions can be judged, and at what tolerance: the reference against itself in fp64."""
        self.high = self._high_model()
        self.coarse = self._is_coarse(first)
        for kind in KINDS:
            found = []
            # One look at a stress distribution is enough: each question widens what it finds too narrow
            for attempt in range(2 if kind == "own" else 1):
                inputs = first if kind == "own" and not attempt else self._transform(self._fresh(), kind)
                low, _ = self._forward(self.model, inputs)
                if kind != "own" and self.clean and not all(map(compare.all_finite, low)):
                    found = None
                    break
                found.append([self._noise(a, b, n) for n, (a, b) in enumerate(zip(low, self._exact(inputs, low), strict=True))])
            if found is None:
                continue
            tolerances = []
            for number, (spec, pairs) in enumerate(zip(self.outputs, zip(*found, strict=True), strict=True)):
                elements, means = zip(*pairs, strict=True)
                tolerances.append(self._tolerance(spec.dtype, max(elements), max(means), number))
            if None not in tolerances:
                self.tolerances[kind] = tolerances
            elif kind == "own":
                raise TaskInvalid("the reference's own rounding noise is larger than any tolerance that tells right from wrong")

    def _noise(self, low, exact, number: int) -> tuple[float, float]:
        if not low.is_floating_point():
            return 0.0, 0.0
        granted = compare.ABSOLUTE * compare.LOWEST.get(compare.name_of(low.dtype), 0.0) * self.absolute[number]
        return compare.noise(low, exact, absolute=granted, far=compare.far_of(low))

    def _tolerance(self, dtype, element: float, mean: float, number: int) -> compare.Tolerance | None:
        coarse = self.coarse and dtype.itemsize == 4
        return compare.tolerance_of(dtype, element, mean, absolute=self.absolute[number], coarse=coarse)

    def _is_coarse(self, inputs: list) -> bool:
        """Whether torch's flags let the reference run in TF32 here: convolutions on a GPU may by default. The candidate has the same flags."""
        import torch

        if self.device == "cpu" or self.low is not None:
            return False
        flags = (torch.backends.cudnn, torch.backends.cuda.matmul)
        kept = [flag.allow_tf32 for flag in flags]
        if not any(kept):
            return False
        usual, _ = self._forward(self.model, inputs)
        try:
            for flag in flags:
                flag.allow_tf32 = False
            strict, _ = self._forward(self.model, inputs)
        finally:
            for flag, value in zip(flags, kept, strict=True):
                flag.allow_tf32 = value
        lowest = compare.LOWEST["float32"]
        return any(a.dtype is torch.float32 and compare.noise(a, b)[0] > lowest for a, b in zip(usual, strict, strict=True))

    def _high_model(self):
        import copy

        import torch

        try:
            return copy.deepcopy(self.model).to(torch.float64)
        except (timing.CallTimeout, torch.OutOfMemoryError):
            raise
        except Exception:  # a module that cannot be copied has no oracle; the lowest tolerance stands
            return None

    def _exact(self, inputs: list, low: list) -> list:
        """The oracle's outputs in fp64. Where it has none, or one of the two overflows (a mask's fill may be the dtype's lowest number), what
        the reference gives at its own precision, `low`, is right."""
        import torch

        if self.high is None:
            return low
        widened = [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in inputs]
        try:
            exacts = self._forward(self.high, widened)[0]
        except (timing.CallTimeout, torch.OutOfMemoryError):
            raise
        except Exception:  # code that pins fp32 inside runs only there
            return low
        found = []
        for mine, exact in zip(low, exacts, strict=True):
            if mine.is_floating_point() and not (compare.all_finite(mine) and compare.all_finite(exact.to(mine.dtype))):
                exact = exact.where(mine.isfinite() & exact.to(mine.dtype).isfinite(), mine.to(exact.dtype))
            found.append(exact)
        return found

    def _transform(self, inputs: list, kind: str) -> list:
        """Floating tensors only: integers are labels or indices, and have no other meaning. Infinities, NaN, structural zeros and symmetry
        stay: they are the task's own statement of what its inputs are."""
        import torch

        changed = []
        for value in inputs:
            if kind == "own" or not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
                changed.append(value)
                continue
            wide, structural, finite = value.float(), _structural(value), compare.all_finite(value)
            if kind == "signed":
                new = wide.copysign(_signs(wide)).contiguous()
                if value.dim() and finite and not structural:
                    _order_some_rows(new)
            elif kind == "small":
                new = wide * 0.03
            elif kind == "scaled":
                new = wide * random.choice((4.0, 16.0))
            elif kind == "shifted":
                new = wide + random.choice((-1, 1)) * random.uniform(2.0, 6.0) * _spread(wide)
            elif kind == "unit":
                new = wide.sign() * (0.1 * torch.randn(value.shape, device=value.device)).exp()
            else:
                new = wide * torch.randn(value.shape, device=value.device).abs_().mul_(1.5).exp_()
            if not finite:
                new = new.where(wide.isfinite(), wide)
            if structural:
                new = new.where(wide != 0, 0.0)
            if _symmetric(value):
                new = new.triu() + new.triu(1).mT
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
                spread = _spread(value.reshape(-1)[:4096].float())
                structural, symmetric = _structural(value), _symmetric(value)
                for _ in range(NEEDLES):
                    place = tuple(random.randrange(n) for n in value.shape)
                    old = float(value[place])
                    if abs(old) == float("inf") or old != old or (structural and old == 0):
                        continue
                    far = random.uniform(8.0, 24.0) * spread
                    value[place] = far if old >= 0 else -far
                    if symmetric:
                        value[(*place[:-2], place[-1], place[-2])] = value[place]
            changed.append(value)
        return changed

    def _nudged(self, inputs: list) -> list:
        """The inputs, each floating element moved by an ulp up or down: as right a question, to any rounding."""
        import torch

        moved = []
        for value in inputs:
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                ulp = torch.finfo(value.dtype).eps
                sign = _signs(value.float()).sign_()
                new = value * (1 + ulp * sign).to(value.dtype)
                value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(new)
            moved.append(value)
        return moved

    def _leaned(self, inputs: list, first: bool) -> list:
        """The inputs in fp64, equal elements told apart: the first (or last) of them has the largest magnitude. No others change places."""
        import torch

        moved = []
        for value in inputs:
            # Two fp64 values may lie closer than that; zeros stay, for their sign decides more than ties
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64:
                rank = torch.arange(value.numel(), dtype=torch.float64, device=value.device).remainder_(LEANS)
                value = value.double() * (rank.neg_().add_(LEANS) if first else rank).mul_(LEAN).add_(1.0).view(value.shape)
            moved.append(value)
        return moved

    def _case(
        self, kind: str, inputs: list, outputs: list, tolerance: list[compare.Tolerance], needles: bool = False, after: list | None = None
    ) -> Case:
        return Case(kind=kind, inputs=inputs, expected=[v.contiguous() for v in outputs], tolerance=tolerance, needles=needles, after=after)

    def draw(self, kind: str = "own") -> Case:
        """A question nobody has seen: inputs from entropy, needles in where the reference stands them, fp64 answers.

        The tolerance is the distribution's, or wider where the reference itself errs more on just these inputs. Inputs on which
        it errs too much to tell right from wrong are drawn anew.
        """
        import torch

        for attempt in range(DRAWS):
            plain = self._transform(self._fresh(), kind)
            for needles in (True, False) if attempt == 0 else (False,):
                inputs = self._needled(plain) if needles else plain
                case = self._question(kind, inputs, needles)
                if case is not None:
                    return case
        low, after = self._forward_and_after(inputs)
        widest = [compare.Tolerance(relative=compare.HIGHEST.get(compare.name_of(v.dtype), 0.0), far=compare.far_of(v)) for v in low]
        self.tolerances[kind] = widest  # the next draw of this kind need not find it out again
        return self._case(
            kind, inputs, [v.clone() for v in low], widest, needles, after if any(isinstance(v, torch.Tensor) for v in inputs) else None
        )

    def _question(self, kind: str, inputs: list, needles: bool) -> Case | None:
        """These inputs with the oracle's answers; None where the reference cannot tell right from wrong on them."""
        low, after = self._forward_and_after(inputs)
        if self.clean and not all(map(compare.all_finite, low)):
            return None
        expected, tolerance = self._answers(inputs, low, kind)
        return None if None in tolerance else self._case(kind, inputs, expected, tolerance, needles, after)

    def _twin(self, known: list[Case]) -> Case | None:
        """The first of the known questions but for a few rows, with answers of its own; None where that would be no other question."""
        reseed()
        first, other = known[0], random.choice(known[1:] or known)
        inputs = [_other_rows(a, b) for a, b in zip(first.inputs, other.inputs, strict=True)]
        if all(a is b for a, b in zip(inputs, first.inputs, strict=True)):
            return None
        return self._question(first.kind, inputs, first.needles)

    def _forward_and_after(self, inputs: list) -> tuple[list, list | None]:
        """Outputs of the reference, and the inputs as it leaves them where it changes them."""
        import torch

        if not self.mutates:
            return self._forward(self.model, inputs)[0], None
        given = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
        # The same memory in the shape it came in: an in-place unsqueeze changes only the tensor that was handed over
        after = [v.detach() if isinstance(v, torch.Tensor) else v for v in given]
        self.mutates = False
        try:
            outputs, _ = self._forward(self.model, given)
        finally:
            self.mutates = True
        return [v.clone() for v in outputs], after

    def _answers(self, inputs: list, low: list, kind: str) -> tuple[list, list[compare.Tolerance | None]]:
        """The oracle's outputs in the dtypes of the reference's, `low`, and the tolerance of each; None where too much of it hangs on an ulp."""
        exacts = self._exact(inputs, low)
        expected = [exact.to(mine.dtype) if mine.is_floating_point() else mine for mine, exact in zip(low, exacts, strict=True)]
        nudged = [self._forward(self.model, self._nudged(inputs))[0] for _ in range(NUDGES if self.delicate else 0)]
        # Which of two equal elements comes first is nobody's fault: whatever hangs on it is seen both ways
        leaned = [self._exact(self._leaned(inputs, first), low) for first in (True, False) if self.chooses and self.high is not None]
        tolerance = []
        for number, (answer, allowed) in enumerate(zip(expected, self.tolerances[kind], strict=True)):
            far = compare.far_of(answer)
            allowed = dataclasses.replace(allowed, far=far, scale=compare.scales(answer, far))
            factor = compare.COARSE_FACTOR if self.coarse else compare.FACTOR.get(compare.name_of(answer.dtype), 1.0)
            # An ulp of an input moves any output by about one, a third of a tolerance of 16 bits; what it decides, it moves by far
            views = [(low[number], factor), *((outputs[number], 1.0 if self.low is None else 0.25) for outputs in nudged)]
            if not answer.is_floating_point():
                views += [(outputs[number], 1.0) for outputs in (exacts, *leaned)]
            undecided = self._undecided(answer, views, allowed)
            if undecided is None and answer.is_floating_point():
                wider = self._tolerance(answer.dtype, *self._noise(low[number], exacts[number], number), number)
                if wider is not None:
                    wider = max(wider.relative, allowed.relative), max(wider.bulk, allowed.bulk)
                    allowed = dataclasses.replace(allowed, relative=wider[0], bulk=wider[1])
                    undecided = self._undecided(answer, views, allowed)
            self.moved |= undecided != ()
            tolerance.append(dataclasses.replace(allowed, slack=undecided or None) if undecided is not None else None)
        return expected, tolerance

    def _undecided(self, answer, views: list, allowed: compare.Tolerance) -> tuple | None:
        """The slack of elements that one of `views`, (output, how many times its error counts), has beyond `allowed`; () where there are none,
        None where they are more than a few."""
        import torch

        found, most = [], max(1, UNDECIDED * answer.numel())
        for view, factor in views:
            pair = compare.beyond(view, answer, allowed, factor)
            if pair is not None and (len(pair[0]) > most or answer.numel() < 2):
                return None
            found += [pair] if pair is not None else []
        if not found:
            return ()
        places, inverse = torch.cat([p for p, _ in found]).unique(return_inverse=True)
        if len(places) > most:
            return None
        gaps = torch.zeros(len(places), dtype=torch.float64, device=answer.device)
        return places, gaps.scatter_reduce_(0, inverse, torch.cat([g for _, g in found]), "amax")

    def cases(self, kind: str):
        """Endless questions of one kind in secret order: first those drawn for earlier candidates (each candidate lives
        alone and sees none twice), then new ones."""
        known = list(self.bank[kind])
        random.Random(os.urandom(16)).shuffle(known)
        yield from known
        while True:
            again = kind == "own" and self.bank[kind] and random.SystemRandom().random() < TWINS
            case = (self._twin(self.bank[kind]) if again else None) or self.draw(kind)
            if self.bank_bytes + case.nbytes <= self.bank_most:
                self.bank[kind].append(case)
                self.bank_bytes += case.nbytes
            yield case

    def controls(self) -> dict[str, bool]:
        """Answers that do no work, tried on all distributions when the reference was made: True where each was seen through."""
        return dict(self._controls)

    def _try_controls(self) -> dict[str, bool]:
        """One question at a time, until each has been seen through."""
        import torch

        other = self.draw("own").expected
        fitting = [
            i
            for i, s in enumerate(self.inputs)
            if isinstance(s, TensorSpec) and s.shape == self.outputs[0].shape and s.dtype == self.outputs[0].dtype
        ]
        floating = any(v.is_floating_point() and v.numel() for v in self.state.values())
        stranger = self._instance({k: _randomised(k, v) for k, v in self.state.items()}) if floating else None
        seen = {"zeros": False, "constant": False, "other_inputs": False, "other_weights": stranger is None}
        seen |= {f"copy{i}": False for i in fitting}
        for kind in self.kinds:
            if all(seen.values()):
                break
            question, again = self.draw(kind), self.draw(kind)
            answers = {
                "zeros": lambda q: [torch.zeros_like(v) for v in q.expected],
                "constant": lambda q: [_constant(v, o) for v, o in zip(q.expected, other, strict=True)],
                "other_inputs": lambda q, a=again: a.expected,
                "other_weights": lambda q: self._forward(stranger, q.inputs)[0],
            } | {f"copy{i}": lambda q, i=i: [q.inputs[i].contiguous(), *q.expected[1:]] for i in fitting}
            for name, answer in answers.items():
                seen[name] = seen[name] or compare.difference(answer(question), question) is not None
        copies = [value for name, value in seen.items() if name.startswith("copy")]
        kept = {name: value for name, value in seen.items() if not name.startswith("copy")}
        return kept | {"copy": all(copies), "repeatable": True}


def _constant(answer, other):
    """The best constant of an answer with many elements; of one with few, what another question's answer says."""
    import torch

    if not answer.is_floating_point():
        return torch.full_like(answer, answer.flatten().mode().values.item() if answer.numel() > 1 else other.flatten()[0].item())
    source = answer if answer.numel() >= compare.BULK_LEAST else other
    return torch.full_like(answer, float(source.double().nan_to_num(0.0, 0.0, 0.0).mean().to(answer.dtype)))


def _structural(value) -> bool:
    return 1 - int(value.count_nonzero()) / value.numel() > STRUCTURE


def _other_rows(value, other):
    """A floating tensor with a few of its middle rows exchanged among themselves, which leaves the sum, or taken from `other`; the tensor
    itself where that changes nothing, or would break its symmetry."""
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel() or _symmetric(value):
        return value
    dim = next((d for d, size in enumerate(value.shape) if size >= 4), None)
    if dim is None:
        return value
    size = value.shape[dim]
    places = random.sample(range(size // 4, size - size // 4), min(TWIN_ROWS, size - 2 * (size // 4)))
    rows = torch.tensor(places, device=value.device)
    old = value.index_select(dim, rows)
    # Zeros of a mask or triangle stand at the same places in another question, not in another row
    new = old.roll(1, dim) if random.random() < 0.5 and not _structural(value) else other.index_select(dim, rows)
    if torch.equal(new, old):
        return value
    changed = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
    return changed.index_copy_(dim, rows, new)


def _spread(values) -> float:
    """Standard deviation of the finite values of a float tensor, from a sample; 1 where there is none."""
    few = values.reshape(-1)[:: values.numel() // compare.SAMPLE + 1]
    few = few[few.isfinite()]
    spread = float(few.std()) if few.numel() > 1 else 1.0
    return spread if 0 < spread < float("inf") else 1.0


def _signs(like):
    """Numbers of random sign in the shape of a float tensor."""
    import torch

    return torch.rand_like(like).sub_(0.5)


def _order_some_rows(values) -> None:
    """Sort, in place, half of the rows, but not more elements than is cheap."""
    import torch

    rows = values.reshape(-1, values.shape[-1])
    most = max(1, compare.SAMPLE // rows.shape[1])
    chosen = (torch.rand(rows.shape[0], device=rows.device) < 0.5).nonzero().flatten()
    chosen = chosen[torch.randperm(len(chosen), device=chosen.device)[:most]]
    rows[chosen] = rows[chosen].sort(dim=-1).values


def _symmetric(value) -> bool:
    import torch

    return value.dim() >= 2 and value.shape[-1] == value.shape[-2] > 1 and torch.equal(value, value.mT)


def _brief(spec) -> str:
    return f"{compare.name_of(spec.dtype)} {spec.shape} {spec.stride}" if isinstance(spec, TensorSpec) else repr(spec)[:60]


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
