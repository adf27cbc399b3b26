"""Seed modules of transformers, found by introspection: attention, MLPs, norms, rotary embeddings, mixtures of experts.

`transformer_seeds()` looks into the modelling files of `ARCHITECTURES` for classes whose names say what they are, builds them from their
own configuration class with the small sizes of `sizes`, and keeps those that run and that no earlier one equals. A task made of one
imports the class, as a user of transformers would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import logging
import re
import warnings
from collections.abc import Iterator
from random import Random
from typing import Any

from data.regimes import LAYOUTS
from data.seeds import Unfit, run_source
from data.trace import fingerprint, trace
from data.values import Shape

log = logging.getLogger(__name__)

ARCHITECTURES = (
    *("albert", "bart", "bert", "bloom", "clip", "codegen", "cohere", "convnext", "dbrx", "deepseek_v3", "distilbert", "electra"),
    *("esm", "falcon", "gemma", "gemma2", "gemma3", "glm", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite"),
    *("granitemoe", "jetmoe", "llama", "mistral", "mixtral", "modernbert", "nemotron", "olmo", "olmo2", "olmoe", "opt", "persimmon"),
    *(
        "phi",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "siglip",
        "stablelm",
        "starcoder2",
        "swin",
        "t5",
        "vit",
    ),
)
KINDS: tuple[tuple[str, str], ...] = (
    (r"(Sdpa|Flash|Cross|Linear|Latent)", ""),
    (r"(MoE|Moe|MoeBlock|SparseMoeBlock)$", "moe"),
    (r"RotaryEmbedding$", "rotary"),
    (r"(RMSNorm|LayerNorm|Norm)$", "norm"),
    (r"(MLP|FeedForward|FFN|DenseActDense|DenseGatedActDense|Intermediate)$", "mlp"),
    (r"(SelfAttention|Attention)$", "attention"),
    (r"(DecoderLayer|Block)$", "layer"),
)
"""(pattern of the class name, family); the first that matches decides, an empty family leaves out."""


def sizes(width: int, length: int) -> dict[str, Any]:
    """Values for the keys that a configuration may have, for a model of `width` on sequences of `length`."""
    heads = max(2, width // 64)
    experts = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
    inner = dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "encoder_ffn_dim", "hidden_dim"), 2 * width
    )
    return (
        dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "embedding_size"), width)
        | dict.fromkeys(
            ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), heads
        )
        | {"num_key_value_heads": max(1, heads // 2), "head_dim": width // heads, "d_kv": width // heads}
        | inner
        | {"moe_intermediate_size": width, "shared_expert_intermediate_size": width}
        | experts
        | dict.fromkeys(("num_experts_per_tok", "n_group", "topk_group", "moe_top_k", "num_hidden_layers", "n_layer", "num_layers"), 2)
        | {"max_position_embeddings": max(64, length), "vocab_size": 512, "rotary_dim": 16, "n_positions": max(64, length)}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleSeed:
    """A class of transformers and how it is built and called. Example: name "LlamaMLP", family "transformers.mlp"."""

    name: str
    family: str
    module: str
    """Python path of the modelling file."""
    config: str | None
    """Name of its configuration class; None where it is built from a width."""
    arguments: tuple[str, ...]
    """Of the constructor, after the configuration or the width."""
    inputs: tuple[str, ...]
    """Of `forward`, that have no default: hidden_states, position_embeddings, ..."""
    rotary: str | None = None
    """The class of the same file that makes `position_embeddings`."""
    suffix: str = ""
    sdpa: bool = False
    """True where it also runs with torch's fused attention."""

    def source(self, shape: Shape, *, sdpa: bool = False) -> str:
        """A task of the module on hidden states of `shape` (batch, length, width). Raises Unfit for other shapes."""
        if len(shape) != 3 or shape[-1] % 32 or shape[-1] > 4096:
            raise Unfit(f"{self.name}: got the shape {shape}, wanted (batch, length, width) with a width of 32, 64, ... 4096")
        return "\n".join(_lines(self, shape, sdpa)) + "\n"

    def shape(self, rng: Random, regime: str, elements: int) -> Shape:
        """(batch, length, width) in a regime."""
        batch, length, width = LAYOUTS["tokens"][regime](rng, elements)
        return (batch, length, max(64, width // 32 * 32))


def _lines(seed: ModuleSeed, shape: Shape, sdpa: bool) -> list[str]:
    batch, length, width = shape
    imports = [seed.name, *([seed.rotary] if seed.rotary else [])]
    lines = ["import torch", "import torch.nn as nn"]
    if seed.config:
        lines.append(f"from {seed.module.replace('.modeling_', '.configuration_')} import {seed.config}")
    lines += [f"from {seed.module} import {', '.join(imports)}", "", "", "class Model(nn.Module):", "    def __init__(self, hidden_size):"]
    lines.append("        super().__init__()")
    given = ["hidden_size"]
    if seed.config:
        chosen = _chosen(seed, width, length)
        first = next((k for k, v in chosen.items() if v == width and k in ("hidden_size", "n_embd", "d_model", "dim", "embed_dim")), None)
        words = [f"{k}={'hidden_size' if k == first else repr(v)}" for k, v in chosen.items()]
        lines.append(f"        config = {seed.config}({', '.join(words)})")
        if seed.family in ("transformers.moe", "transformers.layer"):
            # The default loops over the experts that were chosen: it cannot be traced, and copies indices to the host.
            lines.append('        config._experts_implementation = "batched_mm"')
        if sdpa:
            lines.append('        config._attn_implementation = "sdpa"')
        given = ["config"]
    given += [f"{name}={ARGUMENTS[name]!r}" for name in seed.arguments]
    lines.append(f"        self.layer = {seed.name}({', '.join(given)})")
    if seed.rotary:
        lines.append(f"        self.rotary = {seed.rotary}(config)")
    # Some classes leave their weights for the whole model's initialisation, that is: unset.
    lines += ["        for parameter in self.parameters():"]
    lines += ["            nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.uniform_(parameter)"]
    lines += ["", "    def forward(self, hidden_states):"]
    if seed.family == "transformers.rotary" or {"position_ids", "position_embeddings"} & set(seed.inputs):
        lines.append("        positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]")
    calls = {"position_ids": "positions", "position_embeddings": "self.rotary(hidden_states, positions)", "attention_mask": "None"}
    words = ["hidden_states", *(f"{name}={calls[name]}" for name in seed.inputs[1:])]
    if seed.family == "transformers.rotary":
        lines.append("        cos, sin = self.layer(hidden_states, positions)")
        lines.append("        heads = hidden_states.unflatten(-1, (-1, cos.shape[-1]))")
        lines.append("        first, second = heads.chunk(2, dim=-1)")
        lines.append("        turned = torch.cat((-second, first), dim=-1)")
        lines.append("        return (heads * cos[:, :, None] + turned * sin[:, :, None]).flatten(-2)")
    else:
        lines.append(f"        return self.layer({', '.join(words)}){seed.suffix}")
    lines += ["", "", f"batch_size = {batch}", f"seq_len = {length}", f"hidden_size = {width}", "", "", "def get_inputs():"]
    lines += ["    return [torch.randn(batch_size, seq_len, hidden_size)]", "", "", "def get_init_inputs():", "    return [hidden_size]"]
    return lines


ARGUMENTS: dict[str, Any] = {"layer_idx": 0, "layer_id": 0, "eps": 1e-6, "is_cross_attention": False, "has_relative_attention_bias": False}
CALLED = ("hidden_states", "x", "hidden_state", "position_ids", "position_embeddings", "attention_mask")
"""What `forward` may ask for."""


def _chosen(seed: ModuleSeed, width: int, length: int) -> dict[str, Any]:
    config = getattr(importlib.import_module(seed.module.replace(".modeling_", ".configuration_")), seed.config)
    known = vars(config())
    wanted = sizes(width, length)
    keys = config.attribute_map
    return {key: value for key, value in wanted.items() if key in known and key not in keys}


def _candidates() -> Iterator[tuple[str, Any]]:
    """(modelling file, class), in order of architecture and name."""
    for architecture in ARCHITECTURES:
        path = f"transformers.models.{architecture}.modeling_{architecture}"
        try:
            file = importlib.import_module(path)
        except ImportError as error:
            log.info("architecture %s: left out: %s", architecture, error)
            continue
        for name, found in sorted(vars(file).items()):
            if inspect.isclass(found) and found.__module__ == path and hasattr(found, "forward") and not name.endswith("PreTrainedModel"):
                yield path, found


def _seed(path: str, found: Any) -> ModuleSeed | None:
    """The class as a seed, as far as its signature tells; None where its name is of no family. Raises Unfit."""
    family = next((family for pattern, family in KINDS if re.search(pattern, found.__name__)), "")
    if not family:
        return None
    file = importlib.import_module(path)
    built = [p for p in list(inspect.signature(found.__init__).parameters.values())[1:] if p.kind is p.POSITIONAL_OR_KEYWORD]
    called = [p for p in list(inspect.signature(found.forward).parameters.values())[1:] if p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = tuple(p.name for p in called if p.default is p.empty or p.name == "position_embeddings")
    unknown = sorted({p.name for p in built[1:] if p.default is p.empty} - set(ARGUMENTS)) + sorted(set(needed) - set(CALLED))
    if not built or unknown or not needed:
        raise Unfit(f"{found.__name__}: got the arguments {unknown or built}, wanted some of {', '.join((*ARGUMENTS, *CALLED))}")
    config = None
    if built[0].name == "config":
        configuration = importlib.import_module(path.replace(".modeling_", ".configuration_"))
        hint = getattr(built[0].annotation, "__name__", str(built[0].annotation))
        classes = [
            n
            for n, c in vars(configuration).items()
            if inspect.isclass(c) and c.__module__ == configuration.__name__ and n.endswith("Config")
        ]
        ours = [n for n in classes if n == hint] or [n for n in classes if found.__name__.startswith(n.removesuffix("Config"))] or classes
        config = ours[-1]
    rotary = [n for n, c in vars(file).items() if n.endswith("RotaryEmbedding") and inspect.isclass(c) and c.__module__ == path]
    return ModuleSeed(
        name=found.__name__,
        family=f"transformers.{family}",
        module=path,
        config=config,
        arguments=tuple(p.name for p in built[1:] if p.default is p.empty),
        inputs=(needed[0], *(n for n in needed[1:])),
        rotary=rotary[0] if "position_embeddings" in needed and rotary else None,
    )


@functools.cache
def transformer_seeds() -> dict[str, ModuleSeed]:
    """Modules by name, in order of name: those that run, each unlike the others. Takes some seconds the first time."""
    import torch

    seen: dict[str, str] = {}
    found: dict[str, ModuleSeed] = {}
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        for path, kind in _candidates():
            try:
                seed = _seed(path, kind)
                if seed is None:
                    continue
                source = seed.source((2, 16, 64))
                result = run_source(source)[0]
                if isinstance(result, tuple):
                    seed = dataclasses.replace(seed, suffix="[0]")
                    source = seed.source((2, 16, 64))
                    result = run_source(source)[0]
                if not isinstance(result, torch.Tensor) or not torch.isfinite(result).all():
                    raise Unfit(f"{seed.name}: got {type(result).__name__}, wanted one finite tensor")
                if torch.equal(result, run_source(source, seed=1)[0]) or not torch.equal(result, run_source(source)[0]):
                    raise Unfit(f"{seed.name}: got the same for every input, or another output for the same input")
                graph = trace(source)
            except Exception as error:  # any class of transformers may raise anything: it is reported by name
                log.info("module %s: left out: %s", kind.__name__, str(error).partition("\n")[0])
                continue
            if seed.family == "transformers.attention":
                with contextlib.suppress(ValueError):  # what it says where a variant has no fused form
                    run_source(seed.source((2, 16, 64), sdpa=True))
                    seed = dataclasses.replace(seed, sdpa=True)
            first = seen.setdefault(repr(fingerprint(graph)), seed.name)
            if first == seed.name:
                found[seed.name] = seed
            else:
                log.debug("module %s: the same as %s", seed.name, first)
    return dict(sorted(found.items()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Configurations of made-up sizes make transformers warn; nothing of that concerns the tasks."""
    from transformers.utils import logging as theirs

    level = theirs.get_verbosity()
    theirs.set_verbosity_error()
    try:
        yield
    finally:
        theirs.set_verbosity(level)
