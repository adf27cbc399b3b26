"""Seed operators of torch, found by introspection: what torch and torch.nn export, with arguments drawn by the parameters' names.

`torch_seeds()` looks at every public function of `torch` and `torch.nn.functional` and at every module of `torch.nn`, reads its signature
(aten schema, or Python), finds its family by where it is defined and what it is called, and draws arguments and operands for it from
`GENERATORS`, a table keyed by parameter name. What runs on a small example is a seed; the rest is logged by name with the error.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from data.operators import Operator, Spelling
from data.trace import SYNONYMS, fingerprint, trace
from data.values import Shape, Values
from data.writing import Operand, Step, write_source

log = logging.getLogger(__name__)

DOMAINS: tuple[tuple[str, float, float], ...] = (
    ("torch.randn({shape})", -6.0, 6.0),
    ("torch.rand({shape}) + 0.5", 0.5, 1.5),
    ("torch.rand({shape}) * 1.8 - 0.9", -0.9, 0.9),
    ("torch.rand({shape}) * 0.9 + 0.05", 0.05, 0.95),
    ("torch.rand({shape}) + 1.5", 1.5, 2.5),
)
"""(draw, low, high) in the order in which they are tried: an operator takes the first in which its results are finite."""
NEAR_ONE = ("torch.rand({shape}) * 0.02 + 0.99", 0.99, 1.01)
"""For products of whole rows, which elsewhere overflow or vanish."""
EXAMPLES: dict[str, Shape] = {
    "rows": (16, 32),
    "image1": (2, 8, 32),
    "image2": (2, 8, 16, 16),
    "image3": (2, 8, 8, 8, 8),
    "matrix": (16, 32),
    "rows3": (4, 16, 32),
    "tokens": (2, 16, 32),
    "sequence": (2, 4, 16, 32),
}
"""The small input on which a callable is tried, by layout."""

# (pattern of the lower-case name, family, layout); the first that matches decides. "image" takes its dimensions from the name or is 2-D.
KINDS: tuple[tuple[str, str, str], ...] = (
    (r"^(mkldnn|miopen|cudnn|quantized|native|fbgemm)_|_backward|batch_norm_|gumbel|rrelu|^upsample(_|$)|nllloss2d", "", ""),
    (r"scaled_dot_product_attention$", "attention", "sequence"),
    (r"multiheadattention$", "attention", "tokens"),
    (r"conv_?transpose\dd", "transposed_convolution", "image"),
    (r"^conv\dd", "convolution", "image"),
    (r"unpool|fractional", "", ""),
    (r"pool\dd", "pooling", "image"),
    (r"(batch|instance|group|local_?response)_?norm", "norm", "image"),
    (r"(layer|rms)_?norm|^normalize$", "norm", "rows"),
    (r"linear_?cross|adaptive_?log|ctc|distance_?loss|triplet_margin_with|multilabel_?margin", "", ""),
    (r"softmax2d", "softmax", "image"),
    (r"softm(ax|in)$", "softmax", "rows"),
    (r"loss|cross_entropy|kl_div$", "loss", "rows"),
    (r"cosine_?similarity|pairwise_?distance|cdist$|^dist$", "distance", "rows"),
    (r"^cum|logcumsumexp|trapezoid", "scan", "rows"),
    (r"^(sort|msort|topk|kthvalue)$", "sort", "rows"),
    (
        r"^(gather|scatter|scatter_add|scatter_reduce|index_select|index_add|index_copy|take_along_dim|embedding|masked_fill)$",
        "index",
        "rows",
    ),
    (r"^pad$|pad\dd$", "padding", "image"),
    (r"interpolate|upsampl|grid_sample$", "resample", "image"),
    (r"pixel_?(un)?shuffle|channel_?shuffle|^unfold$", "layout", "image"),
    (r"^(linear|mm|matmul|mv|addmm|inner|bilinear)$", "matmul", "matrix"),
    (r"^(bmm|baddbmm)$", "matmul", "rows3"),
    (r"^(rnn|gru|lstm)cell$", "recurrent", "matrix"),
    (
        r"^(roll|flip|fliplr|flipud|rot90|tile|t|transpose|swapaxes|permute|movedim|cat|stack|hstack|vstack|dstack|column_stack|tril|triu"
        r"|diff|repeat_interleave|diag_embed|kron)$",
        "layout",
        "rows",
    ),
    (
        r"^(sum|mean|amax|amin|prod|var|std|norm|logsumexp|median|nansum|nanmean|nanmedian|var_mean|std_mean|aminmax|frobenius_norm"
        r"|quantile|nanquantile|trace|count_nonzero)$",
        "reduction",
        "rows",
    ),
    (r"^(glu|prelu|softplus|softsign|tanhshrink|logsigmoid|threshold)$", "activation", "rows"),
)
SOURCES = {"torch.nn.modules.activation": "activation"}
"""Family by the module that defines a class, where its name says nothing."""
NOT_ELEMENTWISE = ("dropout", "bernoulli", "equal", "polygamma", "mvlgamma", "sgn", "clone", "positive", "nextafter", "angle")
DRAWS = 3
"""Draws of arguments tried for one example."""
OTHER_NAMES = {"unfold": "im2col", "max": "maximum", "min": "minimum", "pad": "constant_pad_nd", "norm": "linalg_vector_norm"}
"""What a callable is called in aten where that name means something else there."""


class Unfit(ValueError):
    """These arguments cannot be drawn for this shape: try another operator or shape."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Callee:
    """A public callable of torch with what its signature says."""

    path: str
    """As written in a source: torch.cumsum, F.gelu, nn.Conv2d."""
    name: str
    family: str
    layout: str
    required: tuple[str, ...]
    """Names of the arguments of a function, or of a module's constructor, that have no default."""
    optional: tuple[str, ...]
    tensors: tuple[str, ...]
    """Tensor arguments of the function, or of the module's `forward`."""
    is_module: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """What the generators see: the shape of the main input and where its numbers come from."""

    rng: Random
    shape: Shape
    regime: str
    layout: str
    name: str
    chosen: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments drawn so far, by name: later ones may depend on them."""

    @property
    def spatial(self) -> int:
        return int(self.layout[-1]) if self.layout.startswith("image") else 0

    def pick(self, *choices: Any) -> Any:
        self.need(bool(choices))
        return self.rng.choice(choices)

    def need(self, fits: bool) -> None:
        if not fits:
            raise Unfit(f"{self.name}: got the shape {self.shape}, wanted another one")

    @property
    def dim(self) -> int:
        """The dimension that is worked along: the last, or the middle one in the regime `outer`, or the channels of an image."""
        if self.spatial:
            return 1
        return len(self.shape) - 2 if self.regime == "outer" and len(self.shape) > 2 else len(self.shape) - 1


def _operand(d: Draw, shape: Shape, draw: str | None = None, *, name: str = "other", parameter: bool = False) -> Operand:
    return Operand(name=name, shape=shape, draw=draw or "torch.randn({shape})", parameter=parameter)


# -------------------------------------------------------------------- arguments by parameter name


def _dim(d: Draw) -> int:
    at = d.dim
    return at - len(d.shape) if at == len(d.shape) - 1 and d.rng.random() < 0.7 else at


def _kernel(d: Draw) -> int:
    largest = min(d.shape[2:]) if d.spatial else d.shape[-1]
    choices = [k for k in (2, 3, 3, 5, 7 if d.spatial < 3 else 3) if k <= largest]
    return 3 if "conv" in d.name and d.rng.random() < 0.5 and largest >= 3 else d.pick(*choices)


def _stride(d: Draw) -> int:
    return d.pick(1, 2) if "conv" in d.name or "pool" in d.name or d.name == "unfold" else 1


def _padding(d: Draw) -> Any:
    kernel = d.chosen.get("kernel_size")
    if kernel is None and isinstance(d.chosen.get("weight"), Operand):
        kernel = d.chosen["weight"].shape[-1]
    if kernel is not None:
        return kernel // 2
    least = min(d.shape[2:])
    return d.pick(*[p for p in (1, 2, 3, 4) if p < least])


def _pad(d: Draw) -> tuple[int, ...]:
    return tuple(d.pick(0, 1, 2, 3) or 1 for _ in range(2 * max(1, d.spatial)))


def _groups(d: Draw) -> int:
    channels = d.shape[1]
    return d.pick(*[g for g in (2, 3, 4, 8, 16, 32) if channels % g == 0 and channels > g])


def _channels(d: Draw) -> int:
    return d.pick(8, 16, 32, 64) if math.prod(d.shape) < 1 << 16 else d.pick(16, 32, 64, 128)


def _columns(d: Draw) -> int:
    """Output columns of a product with the main input, as its regime wants them."""
    rows, inner = math.prod(d.shape[:-1]), d.shape[-1]
    small = math.prod(d.shape) < 1 << 16
    wide = (64, 96, 128) if small else (1024, 2048, 4096)
    if d.regime == "few_long_rows":
        return max(32, min(8192, math.prod(d.shape) * 8 // inner // 32 * 32)) if small else d.pick(2048, 4096, 8192)
    if d.regime in ("wide", "outer"):
        return d.rng.choice(wide)
    if d.regime == "square":
        return inner
    if d.regime == "odd":
        return d.pick(33, 65, 127) if small else d.pick(127, 255, 511)
    return d.pick(16, 32, 64) if d.regime == "tall" else min(d.pick(64, 128, 256, 512), max(16, rows))


def _output(d: Draw) -> int | tuple[int, ...]:
    least = min(d.shape[2:])
    size = d.pick(*[s for s in (1, 2, 4, 7) if s <= least])
    return size


def _scale(d: Draw) -> float:
    d.need(math.prod(d.shape) * 2**d.spatial <= 1 << 31)
    return 2


def _dims(d: Draw) -> tuple[int, ...]:
    rank = len(d.shape)
    if d.name == "permute":
        order = list(range(rank))
        while order == sorted(order):
            d.rng.shuffle(order)
        return tuple(order)
    if d.name == "tile":
        return (*(1,) * (rank - 1), 2)
    return (d.rng.randrange(rank),)


def _k(d: Draw) -> int:
    return d.pick(*[k for k in (1, 2, 4, 8, 16, 32) if k < d.shape[-1]])


def _float(*choices: float) -> Callable[[Draw], float]:
    return lambda d: d.rng.choice(choices)


def _size(d: Draw) -> Any:
    return d.pick(3, 5)


def _none(d: Draw) -> None:
    return None


# ----------------------------------------------------------------------- operands by parameter name


def _same(name: str = "other") -> Callable[[Draw], Operand]:
    return lambda d: _operand(d, d.shape, "{domain}", name=name)


def _target(d: Draw) -> Operand:
    if re.search(r"cross_?entropy|nll|multi_?margin", d.name) and not re.search("binary|gaussian|poisson", d.name):
        d.need(d.shape[1] >= 8)  # classes
        return _operand(d, d.shape[:1] + d.shape[2:], f"torch.randint(0, {d.shape[1]}, ({{shape}},))", name="target")
    if re.search(r"cosine_?embedding", d.name):
        return _operand(d, d.shape[:1], "torch.randint(0, 2, ({shape},)).float() * 2 - 1", name="target")
    if re.search(r"soft_?margin|hinge|ranking", d.name) and "multilabel" not in d.name:
        return _operand(d, d.shape, "torch.randint(0, 2, ({shape},)).float() * 2 - 1", name="target")
    if re.search(r"kl_?div|binary|bce|multilabel", d.name):
        return _operand(d, d.shape, "torch.rand({shape})", name="target")
    return _operand(d, d.shape, "torch.randn({shape})", name="target")


def _weight(d: Draw) -> Any:
    if d.name == "lerp":
        return d.pick(0.1, 0.25, 0.5)
    if d.name == "prelu":
        return _operand(d, (1,), "torch.full(({shape},), 0.25)", name="weight", parameter=True)
    if d.name.startswith("conv"):
        kernel = _kernel(d)
        pair = (d.shape[1], _channels(d)) if "transpose" in d.name else (_channels(d), d.shape[1])
        scale = 1 / math.sqrt(d.shape[1] * kernel**d.spatial)
        return _operand(d, (*pair, *(kernel,) * d.spatial), f"torch.randn({{shape}}) * {scale:.3g}", name="weight", parameter=True)
    if d.name == "embedding":
        return _operand(d, (d.chosen["rows"], d.pick(64, 128, 256)), name="weight", parameter=True)
    if d.name == "bilinear":
        return _operand(d, (d.pick(8, 16), d.shape[-1], d.shape[-1]), "torch.randn({shape}) * 0.05", name="weight", parameter=True)
    return _operand(
        d, (_columns(d), d.shape[-1]), f"torch.randn({{shape}}) * {1 / math.sqrt(d.shape[-1]):.3g}", name="weight", parameter=True
    )


def _index(d: Draw) -> Operand:
    length = d.shape[d.dim]
    d.need(length >= 8)
    if d.name.startswith("index"):
        count = max(1, length // 2)
        # Equal places would be added in any order: a permutation keeps the result exact.
        return _operand(d, (count,), f"torch.randperm({length})[:{{shape}}]", name="index")
    if d.name.startswith("scatter"):
        return _operand(d, d.shape, f"torch.rand({{shape}}).argsort(dim={d.dim})", name="index")
    return _operand(d, d.shape, f"torch.randint(0, {length}, ({{shape}},))", name="index")


def _source(d: Draw) -> Operand:
    shape = list(d.shape)
    shape[d.dim] = d.chosen["index"].shape[0] if d.name.startswith("index") else shape[d.dim]
    return _operand(d, tuple(shape), name="source")


def _mask(d: Draw) -> Operand:
    return _operand(d, d.shape, "torch.rand({shape}) < 0.3", name="mask")


def _right(d: Draw) -> Operand:
    """The right factor of a product: a second input or a weight."""
    shape = (*d.shape[:-2], d.shape[-1], _columns(d)) if d.name in ("bmm",) else (d.shape[-1], _columns(d))
    draw = f"torch.randn({{shape}}) * {1 / math.sqrt(d.shape[-1]):.3g}"
    return _operand(d, shape, draw, name="weight", parameter=d.name != "bmm" and d.rng.random() < 0.5)


def _other(d: Draw) -> Any:
    if d.name == "matmul":
        return _right(d)
    if d.name == "inner":
        return _operand(d, (min(256, max(8, math.prod(d.shape[:-1]))), d.shape[-1]), name="other")
    if d.name == "kron":
        d.need(math.prod(d.shape) <= 1 << 20)
        return _operand(d, (2,) * len(d.shape), name="other")
    return _same()(d)


def _vector(d: Draw) -> Operand:
    return _operand(d, (d.shape[-1],), name="vec", parameter=d.rng.random() < 0.5)


def _keys(name: str) -> Callable[[Draw], Operand]:
    def draw(d: Draw) -> Operand:
        batch, heads, length, width = d.shape
        length = max(8, length // 8) if d.regime == "tall" else length * 8 if d.regime == "wide" else length
        return _operand(d, (batch, heads, length, width), name=name)

    return draw


def _grid(d: Draw) -> Operand:
    return _operand(d, (d.shape[0], *d.shape[2:], d.spatial), "torch.rand({shape}) * 1.8 - 0.9", name="grid")


def _hidden(d: Draw) -> Operand:
    return _operand(d, (d.shape[0], d.chosen["hidden_size"]), name="hidden")


GENERATORS: dict[str, Callable[[Draw], Any]] = {
    # dimensions and sizes
    "dim": _dim,
    "dim0": lambda d: 0,
    "dim1": lambda d: len(d.shape) - 1,
    "axis0": lambda d: 0,
    "axis1": lambda d: len(d.shape) - 1,
    "destination": lambda d: 0,
    "dims": _dims,
    "keepdim": lambda d: d.rng.random() < 0.5,
    "kernel_size": _kernel,
    "stride": _stride,
    "padding": _padding,
    "pad": _pad,
    "output_size": _output,
    "num_features": lambda d: d.shape[1],
    "num_channels": lambda d: d.shape[1],
    "in_channels": lambda d: d.shape[1],
    "out_channels": _channels,
    "num_groups": _groups,
    "groups": _groups,
    "normalized_shape": lambda d: (d.shape[-1],),
    "in_features": lambda d: d.shape[-1],
    "in1_features": lambda d: d.shape[-1],
    "in2_features": lambda d: d.shape[-1],
    "input_size": lambda d: d.shape[-1],
    "out_features": lambda d: d.pick(8, 16) if d.name == "bilinear" else _columns(d),
    "hidden_size": lambda d: d.pick(32, 64, 128),
    "embed_dim": lambda d: d.need(len(d.shape) == 3 and d.shape[-1] <= 2048) or d.shape[-1],
    "num_heads": lambda d: d.pick(*[h for h in (2, 4, 8) if d.shape[-1] % h == 0]),
    "num_embeddings": lambda d: d.chosen["rows"],
    "embedding_dim": lambda d: d.pick(64, 128, 256),
    "upscale_factor": lambda d: d.need(d.shape[1] % 4 == 0) or 2,
    "downscale_factor": lambda d: d.need(all(s % 2 == 0 for s in d.shape[2:])) or 2,
    "scale_factor": _scale,
    "size": _size,
    "shifts": lambda d: d.pick(1, 3, 7),
    "repeats": lambda d: 2,
    "diagonal": lambda d: d.pick(-1, 0, 1),
    "k": _k,
    "reduction": lambda d: d.pick("mean", "sum", "none"),
    "reduce": lambda d: d.pick("sum", "amax", "mean"),
    "affine": lambda d: True,
    "batch_first": lambda d: True,
    # numbers
    "p": _float(1.0, 2.0),
    "q": _float(0.25, 0.5, 0.9),
    "norm_type": lambda d: 2.0,
    "negative_slope": _float(0.01, 0.1, 0.2),
    "lambd": _float(0.25, 0.5, 1.0),
    "threshold": _float(0.1, 0.5),
    "alpha": _float(0.5, 1.0, 1.5),
    "delta": _float(0.5, 1.0, 2.0),
    "margin": _float(0.5, 1.0),
    "min": _float(-1.0, -0.5, 0.0),
    "max": _float(0.5, 1.0, 2.0),
    "running_mean": lambda d: _operand(d, (d.shape[1],), "torch.zeros({shape})", name="running_mean"),
    "running_var": lambda d: _operand(d, (d.shape[1],), "torch.rand({shape}) + 0.5", name="running_var"),
    # tensors
    "other": _other,
    "x2": lambda d: _operand(d, (min(512, d.shape[0]), *d.shape[1:]), name="other") if d.name == "cdist" else _same()(d),
    "input2": _same(),
    "exponent": _same("exponent"),
    "values": _same("values"),
    "tensor1": _same("a"),
    "tensor2": _same("b"),
    "end": _same("end"),
    "positive": _same("positive"),
    "self": _same(),
    "negative": _same("negative"),
    "condition": _mask,
    "mask": _mask,
    "target": _target,
    "var": lambda d: _operand(d, d.shape, "torch.rand({shape}) + 0.5", name="var"),
    "weight": _weight,
    "index": _index,
    "indices": _index,
    "src": _source,
    "source": lambda d: len(d.shape) - 1 if d.name == "movedim" else _source(d),
    "mat2": _right,
    "vec": _vector,
    "vec2": lambda d: _operand(d, (d.shape[0],), name="other"),
    "key": _keys("key"),
    "grid": _grid,
    "hx": _hidden,
}
"""One generator a parameter name: an argument's value or an `Operand`."""
BY_OPERATOR: dict[tuple[str, str], Callable[[Draw], Any]] = {
    ("value", "scaled_dot_product_attention"): lambda d: dataclasses.replace(d.chosen["key"], name="value"),
    ("value", "scatter"): _float(-1.0, 0.5, 2.0),
    ("mode", "interpolate"): lambda d: d.pick("nearest", "bilinear", "bicubic", "area") if d.spatial == 2 else "nearest",
    ("mode", "upsample"): lambda d: d.pick("nearest", "bilinear"),
    ("mode", "grid_sample"): lambda d: d.pick("bilinear", "nearest"),
    ("align_corners", "grid_sample"): lambda d: False,
    ("value", "masked_fill"): _float(-1.0, 0.0, 2.0),
    ("value", "threshold"): _float(0.0, 0.2),
    ("key", "multiheadattention"): _same("key"),
    ("value", "multiheadattention"): _same("value"),
    ("p", "cdist"): lambda d: 2.0,
    ("mat1", "addmm"): lambda d: _operand(d, (d.shape[0], 64), name="a"),
    ("mat2", "addmm"): lambda d: _operand(d, (64, d.shape[1]), "torch.randn({shape}) * 0.125", name="b"),
    ("batch1", "baddbmm"): lambda d: _operand(d, (*d.shape[:2], 64), name="a"),
    ("batch2", "baddbmm"): lambda d: _operand(d, (d.shape[0], 64, d.shape[2]), "torch.randn({shape}) * 0.125", name="b"),
    ("dims", "rot90"): lambda d: (0, 1),
    ("dims", "roll"): lambda d: len(d.shape) - 1,
    ("value", "pad"): _float(0.0, 1.0),
    **{("value", f"constantpad{n}d"): _float(0.0, 1.0) for n in (1, 2, 3)},
    **{("other", n): (lambda d: _operand(d, d.shape, "torch.rand({shape}) + 0.5")) for n in ("fmod", "remainder", "floor_divide")},
}
"""The same where a name means something else in one operator."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "reduction": ("dim", "keepdim"),
    "scan": ("dim",),
    "softmax": ("dim",),
    "sort": ("dim",),
    "loss": ("reduction", "margin", "delta"),
    "convolution": ("stride", "padding", "groups"),
    "transposed_convolution": ("stride",),
    "pooling": ("stride", "padding"),
    "norm": ("affine",),
    "layout": ("dim", "dims", "diagonal"),
    "distance": ("dim",),
    "resample": ("scale_factor", "mode", "align_corners"),
    "pointwise": ("min", "max"),
    "index": ("dim",),
    "activation": ("negative_slope", "lambd", "alpha", "dim"),
    "attention": ("batch_first",),
}
"""Optional parameters that are drawn too, by family; those of `ALWAYS` each time, the others half of the time."""
ALWAYS = ("dim", "scale_factor", "dims", "affine", "batch_first", "min", "max")


# -------------------------------------------------------------------------------------- introspection


def torch_callables() -> Iterator[Callee]:
    """Public functions of torch and torch.nn.functional and modules of torch.nn that `KINDS` or a pointwise tag gives a family."""
    import torch
    import torch.nn.functional as F

    for path, space in (("F", F), ("torch", torch)):
        for name in sorted(dir(space)):
            found = getattr(space, name)
            if name.startswith("_") or name.endswith("_") or not callable(found) or inspect.isclass(found):
                continue
            family, layout = _kind(name, pointwise=_pointwise(name))
            if family and (parameters := _parameters(found, name, along=family == "reduction")):
                required, optional, tensors = parameters
                if tensors:
                    yield Callee(
                        path=f"{path}.{name}",
                        name=name,
                        family=family,
                        layout=layout,
                        required=required,
                        optional=optional,
                        tensors=tensors,
                    )
    for name in sorted(torch.nn.modules.__all__):
        found = getattr(torch.nn, name)
        if (
            not issubclass(found, torch.nn.Module)
            or name.startswith("Lazy")
            or found.__module__.endswith((".rnn", ".container")) * ("Cell" not in name)
        ):
            continue
        family, layout = _kind(name.lower(), pointwise=False)
        family = family if family is not None else SOURCES.get(found.__module__)
        if not family:
            continue
        given = list(inspect.signature(found.__init__).parameters.values())[1:]
        given = [p for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        forward = list(inspect.signature(found.forward).parameters.values())[1:]
        yield Callee(
            path=f"nn.{name}",
            name=name.lower(),
            family=family,
            layout=layout or "rows",
            required=tuple(p.name for p in given if p.default is p.empty),
            optional=tuple(p.name for p in given if p.default is not p.empty),
            tensors=tuple(p.name for p in forward if p.default is p.empty)
            + (("hx",) if name.endswith("Cell") and name != "LSTMCell" else ()),
            is_module=True,
        )


def _kind(name: str, pointwise: bool) -> tuple[str | None, str | None]:
    """(family, layout); an empty family where the name is left out on purpose, None where nothing is known."""
    for pattern, family, layout in KINDS:
        if re.search(pattern, name):
            if layout == "image":
                digits = re.search(r"([123])d", name)
                layout += digits[1] if digits else "2"
            return family, layout
    if pointwise and name not in NOT_ELEMENTWISE:
        return "pointwise", "rows"
    return None, None


def _pointwise(name: str) -> bool:
    import torch

    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())


def _parameters(found: Any, name: str, along: bool = False) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None:
    """(required, optional, tensors) from the Python signature, or from the first aten schema that writes into no argument.

    `along` prefers a schema that takes one dimension.
    """
    import torch

    if not inspect.isbuiltin(found):
        try:
            parameters = inspect.signature(found).parameters.values()
        except (TypeError, ValueError):
            parameters = ()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and not p.name.startswith("_")]
        if named and all(p.kind is not p.VAR_POSITIONAL for p in parameters):
            required = tuple(p.name for p in named if p.default is p.empty)
            tensors = tuple(p.name for p in named if p.default is p.empty and "Tensor" in str(p.annotation))
            return required, tuple(p.name for p in named if p.default is not p.empty), tensors or required[:1]
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    for schema in sorted(schemas, key=lambda s: along and all(a.name != "dim" for a in s.arguments)):
        if (
            any(a.is_out for a in schema.arguments)
            or "Dimname" in str(schema)
            or not schema.arguments
            or schema.arguments[0].name == "repeats"
        ):
            continue
        required = [a for a in schema.arguments if not a.has_default_value()]
        optional = tuple(a.name for a in schema.arguments if a.has_default_value())
        tensors = tuple("input" if a.name == "self" else a.name for a in required if str(a.type) in ("Tensor", "List[Tensor]"))
        return tuple("input" if a.name == "self" else a.name for a in required), optional, tensors
    # A function of Python that dispatches by a flag (max_pool2d) hides its signature: that of its twin holds.
    twin = getattr(torch.nn.functional, f"{name}_with_indices", None)
    return _parameters(twin, f"{name}_with_indices") if twin is not None else None


# --------------------------------------------------------------------------------------------- seeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seed:
    """An operator of torch with the ways to write it. Example: name "cumsum", family "torch.scan", spellings torch.cumsum."""

    name: str
    family: str
    layout: str
    spellings: tuple[Callee, ...]
    domain: tuple[str, float, float]
    """How its inputs are drawn, and between which values."""
    suffix: str
    """What follows the call: "[0]" where it returns several tensors, ".contiguous()" where it returns a view."""

    def step(self, rng: Random, shape: Shape, regime: str) -> Step:
        """The operator with drawn arguments on an input of `shape`. Raises Unfit where none can be drawn."""
        found = rng.choice(self.spellings)
        step = _step(found, rng, shape, regime, self.domain, self.suffix)
        function = f"{found.path}({{x}}"
        if found.path.startswith("torch.") and step.spelling.call.startswith(function) and _is_method(found.name) and rng.random() < 0.4:
            call = f"{{x}}.{found.name}({step.spelling.call.removeprefix(function).removeprefix(', ')}"
            step = dataclasses.replace(step, spelling=dataclasses.replace(step.spelling, call=call, style="method"))
        return step

    def values(self, before: Values) -> Values | None:
        """Values after the operator, as far as its family tells; None where it should not follow such values."""
        return FAMILY_VALUES.get(self.family.partition(".")[2], _keep)(self, before)


def _step(found: Callee, rng: Random, shape: Shape, regime: str, domain: tuple[str, float, float], suffix: str) -> Step:
    layout = found.layout
    if layout.startswith("image") and len(shape) != int(layout[-1]) + 2:
        raise Unfit(f"{found.name}: got {len(shape)} dimensions, wanted {int(layout[-1]) + 2}")
    if layout == "rows3" and len(shape) != 3:
        raise Unfit(f"{found.name}: got {len(shape)} dimensions, wanted 3")
    if layout == "matrix" and found.name not in ("linear", "matmul", "inner", "bilinear") and len(shape) != 2:
        raise Unfit(f"{found.name}: got {len(shape)} dimensions, wanted 2")
    if layout == "sequence" and len(shape) != 4:
        raise Unfit(f"{found.name}: got {len(shape)} dimensions, wanted 4")
    draw = Draw(rng=rng, shape=shape, regime=regime, layout=layout, name=found.name)
    main = "input" if "input" in found.tensors else found.tensors[0]
    if found.name == "embedding":
        draw.chosen["rows"] = rows = rng.choice((512, 1000, 4096, 8192))
        domain = (f"torch.randint(0, {rows}, ({{shape}},))", 0.0, float(rows))
    wanted = [*found.required, *_options(found, rng)]
    if found.is_module:
        wanted += [t for t in found.tensors if t != main]
    for name in dict.fromkeys(wanted):
        if name == main:
            continue
        generator = BY_OPERATOR.get((name, found.name)) or GENERATORS.get(name)
        if generator is None:
            raise Unfit(f"{found.path}: got the parameter {name}, wanted one that GENERATORS knows")
        draw.chosen[name] = generator(draw)
    call, init, operands = _written(found, draw, main, suffix)
    operands = tuple(dataclasses.replace(o, draw=o.draw.replace("{domain}", domain[0])) for o in operands)
    style = "module" if found.is_module else {"F": "functional"}.get(found.path.partition(".")[0], "torch")
    spelling = Spelling(call=call, init=init, style=style)
    operator = Operator(name=found.name, family=found.family, traced=(), spellings=(spelling,), values=lambda v, a, s: v)
    return Step(operator=operator, spelling=spelling, args={}, operand=None, shape=shape, operands=operands, draw=domain[0])


def _options(found: Callee, rng: Random) -> list[str]:
    offered = [o for o in OPTIONS.get(found.family, ()) if o in found.optional]
    if found.path.startswith("torch."):  # aten's own losses take a number there
        offered = [o for o in offered if o != "reduction"]
    return [o for o in offered if o in ALWAYS or rng.random() < 0.5]


def _written(found: Callee, draw: Draw, main: str, suffix: str) -> tuple[str, str | None, tuple[Operand, ...]]:
    """(call template, module to build, operands): tensors and what has no default by position, the rest by name."""
    operands: list[Operand] = []

    def text(name: str, value: Any) -> str:
        if isinstance(value, Operand):
            key = f"t{len(operands)}"
            operands.append(dataclasses.replace(value, key=key))
            return f"{{{key}}}"
        return repr(value)

    chosen = {name: value for name, value in draw.chosen.items() if name != "rows"}
    first = f"({{x}}, {text('tensors', _same()(draw))})" if main == "tensors" else "{x}"
    if not found.is_module:
        parts = [first if name == main else text(name, chosen[name]) for name in found.required]
        parts += [f"{name}={text(name, value)}" for name, value in chosen.items() if name not in found.required]
        return f"{found.path}({', '.join(parts)}){suffix}", None, tuple(operands)
    inputs = ["{x}", *(text(name, chosen[name]) for name in found.tensors if name != main)]
    given = [f"{value!r}" for name, value in chosen.items() if name in found.required and name not in found.tensors]
    given += [f"{name}={value!r}" for name, value in chosen.items() if name not in found.required and name not in found.tensors]
    return f"{{m}}({', '.join(inputs)}){suffix}", f"{found.path}({', '.join(given)})", tuple(operands)


def _example(found: Callee) -> tuple[tuple[str, float, float], str, Any]:
    """(domain, suffix, traced graph) of a small example. Raises what running it raised last, or Unfit."""
    import torch

    shape = EXAMPLES[found.layout]
    error: Exception = Unfit(f"{found.path}: got no finite output in any domain")
    for domain in (NEAR_ONE,) if found.name in ("prod", "cumprod") else DOMAINS:
        suffix = ""
        for attempt in range(DRAWS):
            try:
                source = write_source(Random(0), (_step(found, Random(attempt), shape, "tall", domain, suffix),), shape, surface="plain")
                result, given = run_source(source)
                if isinstance(result, tuple):
                    suffix += "[0]"
                    source = write_source(
                        Random(0), (_step(found, Random(attempt), shape, "tall", domain, suffix),), shape, surface="plain"
                    )
                    result, given = run_source(source)
                if not isinstance(result, torch.Tensor) or result.dtype is not torch.float32:
                    raise Unfit(f"{found.path}: got an output of {getattr(result, 'dtype', type(result).__name__)}, wanted float32")
                if any(result.untyped_storage().data_ptr() == g.untyped_storage().data_ptr() for g in given if isinstance(g, torch.Tensor)):
                    suffix += ".contiguous()"
                    source = write_source(
                        Random(0), (_step(found, Random(attempt), shape, "tall", domain, suffix),), shape, surface="plain"
                    )
                    result, given = run_source(source)
                graph = trace(source)
                if not graph.operators:
                    raise Unfit(f"{found.path}: got a view, wanted an operator")
                again, _ = run_source(source, seed=1)
                if not torch.isfinite(result).all() or not torch.isfinite(again).all():
                    break
                if torch.equal(result, again) or (result.shape == given[0].shape and torch.equal(result, given[0])):
                    raise Unfit(f"{found.path}: got its input back, or the same for every input")
                if not torch.equal(result, run_source(source)[0]):
                    raise Unfit(f"{found.path}: got another output for the same input")
                return domain, suffix, graph
            except Exception as caught:  # any callable of torch may raise anything: it is reported by name
                error = caught
    raise error


def run_source(source: str, seed: int = 0) -> tuple[Any, list[Any]]:
    import torch

    namespace: dict[str, Any] = {}
    exec(compile(source, "<seed>", "exec"), namespace)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        model = namespace["Model"](*namespace["get_init_inputs"]()).eval()
        torch.manual_seed(seed)
        given = namespace["get_inputs"]()
        return model(*given), given


def declared(name: str) -> str | None:
    """The aten operator that a callable of this name says it is; None where aten has none, or only a composite or a view of that name.

    Composites and views never compute under their own name.
    """
    import torch

    name = OTHER_NAMES.get(name, name)
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return None
    overloads = [getattr(packet, o) for o in packet.overloads()]
    overloads = [o for o in overloads if torch._C._dispatch_has_kernel(o.name())]  # the others are TorchScript's
    composite = any(torch._C._dispatch_has_kernel_for_dispatch_key(o.name(), "CompositeImplicitAutograd") for o in overloads)
    view = any(r.alias_info and not r.alias_info.is_write for o in overloads for r in o._schema.returns)
    return None if composite or view else SYNONYMS.get(name, (name,))[0]


def _declared(name: str, graph: Any) -> None:
    """Raises ValueError where the trace does not hold what the name declares."""
    known = declared(name)
    if known is None:
        return
    if not any(op in (known, f"native_{known}", f"{known}_forward", f"{known}_with_indices", f"a{known}") for op in graph.operators):
        raise ValueError(f"{name}: got the trace {graph.operators}, wanted {known} in it")


def _is_method(name: str) -> bool:
    import torch

    return hasattr(torch.Tensor, name)


@functools.cache
def torch_seeds() -> dict[str, Seed]:
    """Seeds by name, in order of name: distinct operators, each with its spellings. Takes a few seconds the first time."""
    groups: dict[str, list[tuple[Callee, Any]]] = {}
    by_graph: dict[Any, str] = {}
    for found in torch_callables():
        try:
            example = _example(found)
            _declared(found.name, example[2])
        except Exception as error:  # named, and the rest goes on
            log.info("seed %s: left out: %s", found.path, str(error).partition("\n")[0])
            continue
        plain = found.name.replace("_", "").removesuffix("loss")
        print_of = (found.layout, repr(fingerprint(example[2])))
        key = plain if plain in groups else by_graph.setdefault(print_of, plain)
        groups.setdefault(key, []).append((found, example))
    seeds = {}
    for members in groups.values():
        first, (domain, suffix, _) = members[0]
        alike = tuple(m for m, example in members if example[:2] == (domain, suffix))
        seeds[first.name] = Seed(
            name=first.name, family=f"torch.{first.family}", layout=first.layout, spellings=alike, domain=domain, suffix=suffix
        )
    return dict(sorted(seeds.items()))


# --------------------------------------------------------------------------------------------- values


def _inside(seed: Seed, v: Values) -> bool:
    return seed.domain == DOMAINS[0] or (seed.domain[1] <= v.lo and v.hi <= seed.domain[2])


def _keep(seed: Seed, v: Values) -> Values | None:
    return v if v.size < 1e4 and _inside(seed, v) else None


def _unit(seed: Seed, v: Values) -> Values | None:
    return None if v.hi - v.lo < 0.01 or "square" in v.marks else Values(marks=frozenset({"square"}))


def _mix(seed: Seed, v: Values) -> Values | None:
    return Values(lo=-v.size, hi=v.size) if 0.05 < v.size < 1e4 else None


def _small(seed: Seed, v: Values) -> Values | None:
    return None if v.size > 100 or v.hi - v.lo < 0.5 or "sum" in v.marks else Values(lo=-20.0, hi=1.0, marks=frozenset({"sum"}))


def _grow(seed: Seed, v: Values) -> Values | None:
    return Values(lo=-100 * v.size, hi=100 * v.size) if v.size < 50 and seed.name != "cumprod" else None


def _folded(seed: Seed, v: Values) -> Values | None:
    return None if v.marks or v.size > 100 or seed.domain != DOMAINS[0] else Values(lo=-30 * v.size, hi=30 * v.size)


def _bounded(seed: Seed, v: Values) -> Values | None:
    """An elementwise operator is asked what it makes of the interval's ends and of what lies between."""
    import torch

    if not _inside(seed, v) or v.size > 50:
        return None
    shape = (1, 64)
    step = seed.step(Random(0), shape, "tall")
    if step.operands:
        return None if v.marks else Values(lo=-36.0, hi=36.0)
    namespace: dict[str, Any] = {}
    exec(compile(write_source(Random(0), (step,), shape, surface="plain"), "<seed>", "exec"), namespace)
    given = torch.linspace(v.lo, v.hi, 64)
    with torch.no_grad():
        found = namespace["Model"](*namespace["get_init_inputs"]())(given[None])[0]
    low, high = float(found.min()), float(found.max())
    if not math.isfinite(low + high) or high - low < 1e-3 or max(abs(low), abs(high)) > 1e4 or torch.equal(found, given):
        return None
    marks = {"low"} if int((found <= low + 1e-6).sum()) > 8 else set()
    return Values(lo=low, hi=high, marks=frozenset(marks | ({"high"} if int((found >= high - 1e-6).sum()) > 8 else set())))


FAMILY_VALUES: dict[str, Callable[[Seed, Values], Values | None]] = {
    "norm": _unit,
    "matmul": _mix,
    "convolution": _mix,
    "transposed_convolution": _mix,
    "recurrent": lambda seed, v: Values(lo=-1.0, hi=1.0) if v.size < 20 else None,
    "attention": _mix,
    "softmax": _small,
    "scan": _grow,
    "loss": _folded,
    "distance": _folded,
    "reduction": _folded,
    "pointwise": _bounded,
    "activation": _bounded,
}
"""How values follow through a family; the families not named keep their input's."""
