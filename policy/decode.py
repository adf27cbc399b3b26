"""Continuous sampling over a HF model: rows join and leave between steps; keys and values live in a preallocated store.

Every forward is one packed row [1, N]: N new tokens of one request when it joins (prefill), else one token of each active
request. A slot holds what its request has seen and stays readable after the request ends, so a later request that begins
with the same ids (the next turn of an episode, another sample of the task) copies that part instead of computing it.
Sampling is by temperature alone: top-k or top-p would make the reported log-probabilities those of another distribution.
"""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import torch
import torch.nn.functional as F

from policy import attention

BLOCK = 128
"""The store grows and attention is cut off in multiples of this many tokens."""


class Store:
    """Keys and values of `slots` sequences: [layers, slots, kv heads, capacity, head dim]."""

    def __init__(self, model, slots: int, capacity: int = BLOCK):
        config = model.config
        self.heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.layers, self.slots, self.dtype, self.device = config.num_hidden_layers, slots, model.dtype, model.device
        self.capacity = 0
        self.longest = 0
        self.grow(capacity)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens a slot, keeping what is there."""
        capacity = -(-capacity // BLOCK) * BLOCK
        if capacity <= self.capacity:
            return
        for name in ("keys", "values"):
            # zeros, not empty: masked places are multiplied by zero, and 0 * NaN would spread
            new = torch.zeros(self.layers, self.slots, self.kv_heads, capacity, self.dim, dtype=self.dtype, device=self.device)
            if self.capacity:
                new[:, :, :, : self.capacity] = getattr(self, name)
            setattr(self, name, new)
        self.capacity = capacity

    def copy(self, source: int, target: int, length: int) -> None:
        """The first `length` tokens of slot `source` become those of slot `target`."""
        for tensor in (self.keys, self.values):
            tensor[:, target, :, :length] = tensor[:, source, :, :length]

    def swap(self, a: int, b: int) -> None:
        for tensor in (self.keys, self.values):
            tensor[:, [a, b]] = tensor[:, [b, a]]

    def prefill(self, slot: int, start: int, count: int) -> None:
        """The next forward carries tokens start..start+count of one slot."""
        self.slot, self.start, self.count, self.decoding = slot, start, count, False
        self.longest = start + count
        self.mask = None
        if start:
            self.mask = torch.ones(count, start + count, dtype=torch.bool, device=self.device).tril_(start)

    def decode(self, lengths: list[int]) -> None:
        """The next forward carries one token for each of the slots 0, 1, ...; `lengths` [n] counts what each has seen before."""
        self.decoding = True
        self.longest = max(lengths) + 1
        self.rows = torch.arange(len(lengths), device=self.device)
        self.at = torch.tensor(lengths, device=self.device)
        self.width = min(-(-self.longest // BLOCK) * BLOCK, self.capacity)
        unseen = torch.arange(self.width, device=self.device) > self.at[:, None]
        self.mask = torch.zeros(len(lengths), 1, 1, self.width, dtype=self.dtype, device=self.device)
        self.mask.masked_fill_(unseen[:, None, None], float("-inf"))

    def attend(self, layer, query, key, value, scaling):
        """query [1, h, N, d], key and value [1, kv, N, d] -> [1, N, h, d]; writes the new keys and values first."""
        keys, values = self.keys[layer], self.values[layer]
        if self.decoding:
            keys[self.rows, :, self.at] = key[0].transpose(0, 1)
            values[self.rows, :, self.at] = value[0].transpose(0, 1)
            count = len(self.rows)
            # the query heads of one key head stand in the place of positions: no repeated keys
            query = query[0].transpose(0, 1).reshape(count, self.kv_heads, -1, self.dim)
            seen = (tensor[:count, :, : self.width] for tensor in (keys, values))
            return F.scaled_dot_product_attention(query, *seen, attn_mask=self.mask, scale=scaling).reshape(1, count, self.heads, self.dim)
        end = self.start + self.count
        keys[self.slot, :, self.start : end] = key[0]
        values[self.slot, :, self.start : end] = value[0]
        seen = (tensor[self.slot : self.slot + 1, :, :end] for tensor in (keys, values))
        out = F.scaled_dot_product_attention(
            query, *seen, attn_mask=self.mask, is_causal=self.mask is None, scale=scaling, enable_gqa=self.kv_heads != self.heads
        )
        return out.transpose(1, 2).contiguous()


@dataclasses.dataclass(eq=False)
class Row:
    """One request. `ids` grows from the prompt to the whole; `prompt` is the prompt's length."""

    ids: list[int]
    prompt: int
    draws: np.ndarray
    """float64 [max_new_tokens] in [0, 1): token t is chosen by draws[t] alone, whoever shares the batch."""
    logprobs: list[float] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    cancelled: bool = False
    owner: object = None

    @property
    def sampled(self) -> list[int]:
        return self.ids[self.prompt :]


class Decoder:
    """Requests in, sampled tokens and their fp32 log-probabilities out. One thread at a time may call it."""

    def __init__(self, model, *, stop_ids, temperature: float = 1.0, slots: int = 64, context: int | None = None):
        if temperature <= 0:
            raise ValueError(f"temperature: got {temperature}, wanted a positive number")
        if model.config._attn_implementation != attention.NAME:
            raise ValueError(f"model: got attention {model.config._attn_implementation!r}, wanted one from policy.model.load")
        self.model, self.stop_ids, self.temperature = model, frozenset(stop_ids), temperature
        self.context = min(context or model.config.max_position_embeddings, model.config.max_position_embeddings)
        self.store = Store(model, slots)
        self.waiting: collections.deque[Row] = collections.deque()
        """Other threads may append while a step runs; only a step takes."""
        self.active: list[Row] = []
        self.seen: list[np.ndarray] = [np.empty(0, np.int64)] * slots
        """Ids whose keys and values stand in each slot; slots below len(active) belong to active rows."""
        self.used = [0] * slots
        self.clock = 0
        self.counts = {"prefilled": 0, "reused": 0, "sampled": 0, "steps": 0}

    def submit(self, ids, *, max_new_tokens: int, seed: int, owner=None) -> Row:
        """Queue a request. Raises ValueError for an empty prompt, no room in the context, or no token to sample."""
        ids = [int(i) for i in ids]
        if not ids or max_new_tokens < 1:
            raise ValueError(f"request: got {len(ids)} prompt tokens and max_new_tokens {max_new_tokens}, wanted at least one of each")
        if len(ids) >= self.context:
            raise ValueError(f"request: got {len(ids)} prompt tokens, wanted fewer than the context of {self.context}")
        draws = np.random.Generator(np.random.PCG64(seed)).random(min(max_new_tokens, self.context - len(ids)))
        row = Row(ids, len(ids), draws, owner=owner)
        self.waiting.append(row)
        return row

    def reset(self) -> None:
        """Forget every stored key and value: needed after each change of the weights. Raises ValueError while rows are active."""
        if self.active or self.waiting:
            raise ValueError(f"reset: got {len(self.active) + len(self.waiting)} requests under way, wanted none")
        self.seen = [np.empty(0, np.int64)] * len(self.seen)

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Let waiting rows join, sample one token for every active row, and return the rows that ended."""
        self.model.eval()
        ended = []
        for row in [row for row in self.active if row.cancelled]:
            self._leave(row)
        while self.waiting and len(self.active) < len(self.seen):
            row = self.waiting[0]  # stays in line until it has joined: an error there must reach who waits for it
            over = not row.cancelled and self._join(row)
            self.waiting.popleft()
            if over:
                ended.append(row)
        if self.active:
            ended += self._decode()
        self.counts["steps"] += 1
        return ended

    def _join(self, row: Row) -> bool:
        """Give the row a slot, compute its prompt, sample its first token; True when that ended it."""
        ids = np.asarray(row.ids, np.int64)
        self.store.grow(min(self.context, len(ids) + len(row.draws)))
        slot = len(self.active)
        shared = [_common(ids, seen) for seen in self.seen]
        best = max(range(len(shared)), key=shared.__getitem__)
        reuse = min(shared[best], len(ids) - 1)  # the last token is computed anyway: its hidden state gives the first sample
        victim = min(range(slot, len(self.seen)), key=lambda s: (len(self.seen[s]) > 0, self.used[s]))
        if best >= slot and (reuse == len(self.seen[best]) or best == victim):
            self._swap(best, slot)  # a parked slot that this request continues, or that is given up anyway
        else:
            if victim != slot:  # what stands in the first free slot moves to the one given up
                self.store.copy(slot, victim, len(self.seen[slot]))
                self.seen[victim], self.used[victim] = self.seen[slot], self.used[slot]
                best = victim if best == slot else best
            if reuse and best != slot:
                self.store.copy(best, slot, reuse)
        self.active.append(row)
        self.store.prefill(slot, reuse, len(ids) - reuse)
        hidden = self._forward(ids[reuse:], np.arange(reuse, len(ids)))
        self.seen[slot] = ids
        self._touch(slot)
        self.counts["prefilled"] += len(ids) - reuse
        self.counts["reused"] += reuse
        self._sample(hidden[-1:], [row])
        return self._ended(row)

    def _decode(self) -> list[Row]:
        lengths = [len(row.ids) - 1 for row in self.active]
        self.store.decode(lengths)
        hidden = self._forward([row.ids[-1] for row in self.active], lengths)
        rows = list(self.active)
        self._sample(hidden, rows)
        return [row for row in rows if self._ended(row)]

    def _forward(self, ids, positions) -> torch.Tensor:
        """[N] ids and positions -> hidden states [N, H]."""
        ids, positions = (torch.as_tensor(np.asarray(x, np.int64), device=self.store.device)[None] for x in (ids, positions))
        return self.model.base_model(input_ids=ids, position_ids=positions, use_cache=False, store=self.store).last_hidden_state[0]

    def _sample(self, hidden: torch.Tensor, rows: list[Row]) -> None:
        """Inverse of the cumulative distribution at each row's own draw; log-probabilities of the tempered softmax in fp32."""
        logits = self.model.get_output_embeddings()(hidden).float() / self.temperature
        logprobs = torch.log_softmax(logits, -1)
        cumulative = logprobs.double().exp_().cumsum_(-1)
        draws = torch.tensor([row.draws[len(row.ids) - row.prompt] for row in rows], dtype=torch.float64, device=logits.device)
        chosen = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True).clamp_(max=logits.shape[-1] - 1)
        picked = logprobs.gather(-1, chosen)[:, 0].tolist()
        for row, token, logprob in zip(rows, chosen[:, 0].tolist(), picked, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
        self.counts["sampled"] += len(rows)

    def _ended(self, row: Row) -> bool:
        if row.ids[-1] in self.stop_ids:
            row.finish_reason = "stop"
        elif len(row.ids) - row.prompt >= len(row.draws):
            row.finish_reason = "length"
        else:
            return False
        self._leave(row)
        return True

    def _leave(self, row: Row) -> None:
        """Park the row's slot behind the active ones, readable until another request needs the place."""
        slot, last = self.active.index(row), len(self.active) - 1
        self.seen[slot] = np.asarray(row.ids[:-1], np.int64)  # the last token was sampled but never computed
        self._touch(slot)
        if slot != last:
            self._swap(slot, last)
            self.active[slot] = self.active[last]
        self.active.pop()

    def _swap(self, a: int, b: int) -> None:
        if a != b:
            self.store.swap(a, b)
            self.seen[a], self.seen[b] = self.seen[b], self.seen[a]
            self.used[a], self.used[b] = self.used[b], self.used[a]

    def _touch(self, slot: int) -> None:
        self.clock += 1
        self.used[slot] = self.clock


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common beginning."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
