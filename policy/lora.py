"""Low-rank adapters (Hu et al., 2021) through peft, the optional extra `lora`: only they are trained, and a checkpoint holds the merged weights."""

from __future__ import annotations

import torch


def attach(net, rank: int, seed: int):
    """Put adapters of `rank`, alpha 2 * rank, no dropout, on every linear layer of the transformers model `net`, in place, and freeze the rest.

    Deterministic in `seed`; the net computes the same as before until they are trained. Returns the handle for `merge`. Raises ValueError without peft.
    """
    try:
        import peft
    except ImportError as error:
        raise ValueError(f"lora_rank: got {rank} without the package peft, wanted pip install 'cuda-agent[lora]'") from error
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(net, config)


def merge(handle) -> None:
    """Add the adapters to the weights of the net they were attached to, and take them off."""
    handle.merge_and_unload()
