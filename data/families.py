"""Families of traced operators: which kernel a task comes down to, told from its aten operators alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

FAMILIES: tuple[tuple[str, str], ...] = (
    ("convolution", r"convolution|conv\d?d|im2col|col2im"),
    ("attention", r"scaled_dot_product|flash_attention|efficient_attention"),
    ("matmul", r"^(mm|bmm|addmm|baddbmm|addmv|mv|matmul|linear|bilinear|trilinear|dot|grouped_mm)$"),
    ("distance", r"cdist|pairwise_distance"),
    ("sort", r"sort|topk|kthvalue|median|mode|quantile"),
    ("scan", r"^cum|logcumsumexp"),
    ("softmax", r"softmax"),
    ("norm", r"norm$|batch_norm"),
    ("loss", r"_loss|cross_entropy|kl_div"),
    ("pooling", r"pool"),
    ("reduction", r"^(sum|mean|amax|amin|prod|var|std|var_mean|std_mean|logsumexp|nansum|nanmean|aminmax|trace|argmax|argmin|max|min)$"),
    ("resample", r"upsample|grid_sampler|interpolate"),
    ("index", r"gather|scatter|index|embedding|take|masked|where"),
    ("padding", r"_pad"),
    ("layout", r"^(clone|cat|stack|flip|roll|repeat|tril|triu|pixel|copy|diag|fliplr|flipud|to_copy)"),
)
"""(family, pattern of aten names), the costliest first; what matches none is elementwise."""
ELEMENTWISE = "elementwise"


def family_of(operators: Sequence[str]) -> str:
    """The family of the costliest of the traced `operators`, by class of cost: a convolution before a product before a row operator."""
    if "rsqrt" in operators and {"mean", "var_mean", "sum"} & set(operators):  # a norm that is written out
        operators = [*operators, "norm"]
    for family, pattern in FAMILIES:
        if any(re.search(pattern, operator) for operator in operators):
            return family
    return ELEMENTWISE
