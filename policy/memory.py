"""What a fit will need, before it starts: bytes on each rank, from the shapes of its checkpoints alone.

An estimate from counting tensors, not a bound: allocators fragment, and a model with other blocks than attention and a gated MLP keeps other tensors.
"""

from __future__ import annotations

import dataclasses
import pathlib

import torch

GIB = 1 << 30
HEAD_CHUNK = 1024
"""Action tokens whose logits exist at one time, roughly: DeepSpeed's linear cross-entropy works in chunks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """Bytes on one rank."""

    weights: int
    gradients: int
    optimizer: int
    """fp32 master weights, both of Adam's moments and the step's fp32 gradients."""
    activations: int
    """Of the larger model's one micro-batch, its logits included; models take turns."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    def __str__(self) -> str:
        parts = ", ".join(f"{field.name} {getattr(self, field.name) / GIB:.2f}" for field in dataclasses.fields(self))
        return f"{self.total / GIB:.2f} GiB ({parts})"


def parameters(path) -> int:
    """Elements of all weights in the checkpoint folder `path`, from the headers of its *.safetensors; else from the size of its 16-bit files."""
    from safetensors import safe_open

    folder, count = pathlib.Path(path), 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                size = 1
                for length in opened.get_slice(name).get_shape():
                    size *= length
                count += size
    return count or sum(file.stat().st_size // 2 for file in folder.glob("pytorch_model*.bin"))


def activations(config, tokens: int, *, width: int, checkpointing: bool) -> int:
    """Bytes that the backward pass of `tokens` tokens needs of the layers; width: bytes an element.

    A layer keeps about 12 hidden vectors (norms, queries, attention's output, residuals), 4 of keys and values and 4 of its MLP's inner width for each
    token; with checkpointing its input alone, and one layer at a time the whole.
    """
    hidden = config.hidden_size
    heads = config.num_attention_heads
    keys = (getattr(config, "num_key_value_heads", None) or heads) * (getattr(config, "head_dim", None) or hidden // heads)
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    if experts := getattr(config, "num_experts_per_tok", None):
        inner = (getattr(config, "moe_intermediate_size", None) or inner) * experts
    layer = tokens * width * (12 * hidden + 4 * keys + 4 * inner)
    layers = config.num_hidden_layers
    return tokens * width * hidden * layers + layer if checkpointing else layer * layers


def forecast(
    models: dict[str, str | pathlib.Path],
    *,
    tokens: int,
    actions: int,
    zero_stage: int,
    ranks: int,
    dtype: str,
    checkpointing: bool = False,
    lora_rank: int | None = None,
) -> Forecast:
    """For the engines `models` (name -> checkpoint folder; "actor" has a head over the vocabulary) with micro-batches of `tokens` tokens, `actions` of them actions."""
    from transformers import AutoConfig

    width = 2 if dtype == "bfloat16" else 4
    weights = gradients = optimizer = largest = 0
    for name, path in models.items():
        config, count = AutoConfig.from_pretrained(str(path)), parameters(path)
        trained = count if lora_rank is None else min(count, 14 * lora_rank * config.hidden_size * config.num_hidden_layers)
        weights += count * width // (ranks if zero_stage == 3 else 1)
        gradients += trained * width // (ranks if zero_stage >= 2 else 1)
        optimizer += trained * (16 // ranks if zero_stage else 8)
        kept = activations(config, tokens, width=width, checkpointing=checkpointing)
        if name == "actor":
            kept += 3 * 4 * min(actions, HEAD_CHUNK) * config.vocab_size
        largest = max(largest, kept)
    return Forecast(weights=weights, gradients=gradients, optimizer=optimizer, activations=largest)


def available(device: torch.device) -> int:
    """Bytes that a fit may still take: free on the GPU and cached by torch, or free in this machine and its control group."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    group = pathlib.Path("/sys/fs/cgroup")
    if (group / "memory.max").exists() and (limit := (group / "memory.max").read_text().strip()) != "max":
        free = min(free, int(limit) - int((group / "memory.current").read_text()))
    return free


def check(needed: Forecast, free: int, device: torch.device) -> str:
    """One line with both numbers. Raises ValueError with it when the fit cannot fit."""
    if needed.total > free:
        raise ValueError(
            f"memory: got a fit that needs about {needed}, wanted at most the {free / GIB:.2f} GiB free on {device}"
            " (lower machine.micro_tokens, set machine.checkpointing, a higher zero_stage over more GPUs, or lora_rank)"
        )
    return f"memory: about {needed} of {free / GIB:.2f} GiB free on {device}"
