"""One attention for training and sampling, so that both compute the same numbers, on any transformers model.

transformers builds no mask for an attention it does not know, so a packed row never depends on the conditions under which
its own mask code notices packing (`attention_mask is None` and `use_cache=False`, silently wrong otherwise). What a token
may see is said by exactly one of two keyword arguments of the model's forward:
    spans: lengths of the sequences packed into the one row, adding up to T; each is causal in itself
    store: a `policy.decode.Store`, which appends keys and values and attends over what a row has seen
With neither, every row of the batch is one causal sequence.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

NAME = "policy"


def attend(module, query, key, value, attention_mask=None, *, scaling=None, spans=None, store=None, sliding_window=None, **options):
    """query [B, h, T, d], key and value [B, kv, T, d], after rotation -> ([B, T, h, d], None).

    Raises ValueError for models that need more than causal attention (sliding windows that bind, soft caps, sinks).
    """
    for name in ("softcap", "s_aux"):
        if options.get(name) is not None:
            raise ValueError(f"model: got attention with {name}, wanted plain causal attention")
    longest = store.longest if store is not None else max(spans) if spans is not None else query.shape[2]
    if sliding_window is not None and longest > sliding_window:
        raise ValueError(f"sequence: got {longest} tokens, wanted at most the model's sliding window of {sliding_window}")
    if store is not None:
        return store.attend(module.layer_idx, query, key, value, scaling), None
    gqa = query.shape[1] != key.shape[1]
    if spans is None or len(spans) == 1:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=gqa)
    else:
        if query.shape[0] != 1 or sum(spans) != query.shape[2]:
            raise ValueError(f"spans: got {sum(spans)} tokens for a batch of {tuple(query.shape[::2])}, wanted one row of that many")
        parts = zip(query.split(list(spans), 2), key.split(list(spans), 2), value.split(list(spans), 2), strict=True)
        out = torch.cat([F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=gqa) for q, k, v in parts], 2)
    return out.transpose(1, 2).contiguous(), None


def register() -> str:
    """Make the name known to transformers; returns the name for `attn_implementation`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    return NAME
