"""The embedded player `hf`: `await sampler.generate(segments, max_new_tokens=..., seed=...)` from any number of episodes.

Concurrent calls share one continuously changing batch on a thread of their own, so the event loop stays free for judging.
What it does not do: top-k, top-p, penalties (they would falsify the log-probabilities), or text in: segments carry ids.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data.records import Record

if TYPE_CHECKING:
    from policy.prompt import Segment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion(Record):
    """What a player answers. PPO refuses completions whose ids or logprobs are None."""

    ids: tuple[int, ...] | None
    """[A] sampled tokens, the end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...] | None
    """[A] natural logarithms under the tempered policy that sampled, fp32."""
    text: str
    """The decoded ids without special tokens."""
    finish_reason: str
    """stop (an end-of-turn token was sampled) or length (max_new_tokens or the context is used up)."""
    policy_version: str | None


class HfSampler:
    """A policy checkpoint held in this process.

    max_batch: requests decoded together; the rest wait. dtype: "float32" or "bfloat16". temperature: of every request.
    context: most tokens of prompt and completion together (the model's own limit by default).
    Same seed, same ids -> same completion, whatever else is in the batch (up to the rounding of a matrix product whose
    number of rows differs: 1e-6 in a log-probability).
    """

    def __init__(
        self,
        checkpoint_path,
        *,
        device: str = "cpu",
        max_batch: int = 64,
        dtype: str = "float32",
        temperature: float = 1.0,
        context: int | None = None,
    ):
        import torch

        from policy import decode, model

        if dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype: got {dtype!r}, wanted float32 or bfloat16")
        self.model, self.tokenizer, self.checkpoint = model.load(checkpoint_path, dtype=getattr(torch, dtype), device=device)
        stop = {
            self.tokenizer.eos_token_id,
            self.tokenizer.convert_tokens_to_ids(model.END),
            self.tokenizer.convert_tokens_to_ids(model.TEXT_END),
        }
        stop -= {None, self.tokenizer.unk_token_id}
        self.decoder = decode.Decoder(self.model, stop_ids=stop, temperature=temperature, slots=max_batch, context=context)
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._driver: asyncio.Task | None = None

    async def generate(self, segments: Sequence[Segment], *, max_new_tokens: int, seed: int) -> Completion:
        """Sample one completion of the concatenated ids. Raises ValueError for segments without ids or beyond the context."""
        ids: list[int] = []
        for segment in segments:
            if segment.ids is None:
                raise ValueError(f"segment: got {segment.role} text without ids, wanted ids (a Prompt with a tokenizer)")
            ids.extend(segment.ids)
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        row = self.decoder.submit(ids, max_new_tokens=max_new_tokens, seed=seed, owner=future)
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            self._driver = loop.create_task(self._drive())
        try:
            await future
        finally:
            row.cancelled = row.finish_reason is None
        text = self.tokenizer.decode(row.sampled, skip_special_tokens=True)
        return Completion(
            ids=tuple(row.sampled),
            logprobs=tuple(row.logprobs),
            text=text,
            finish_reason=row.finish_reason,
            policy_version=self.checkpoint.id,
        )

    async def _drive(self) -> None:
        """Step until nothing waits or runs; an error of a step reaches every caller."""
        loop = asyncio.get_running_loop()
        while self.decoder.waiting or self.decoder.active:
            try:
                ended = await loop.run_in_executor(self._executor, self.decoder.step)
            except Exception as error:  # handed to every waiting caller, raised there
                rows = [*self.decoder.waiting, *self.decoder.active]
                self.decoder.waiting.clear()
                self.decoder.active.clear()
                self.decoder.reset()
                for row in rows:
                    if not row.owner.done():
                        row.owner.set_exception(error)
                return
            for row in ended:
                if not row.owner.done() and row.owner.get_loop() is loop:
                    row.owner.set_result(None)

    def reload(self, path) -> None:
        """Take the weights of another checkpoint of the same shape and tokenizer; forgets every cached key and value.

        Raises ValueError while requests are under way, or when tokenizer or shapes differ.
        """
        from policy import model

        fresh, _, checkpoint = model.load(path, dtype=self.model.dtype)
        if (checkpoint.tokenizer, checkpoint.template) != (self.checkpoint.tokenizer, self.checkpoint.template):
            raise ValueError(f"checkpoint {str(path)!r}: got another tokenizer or template, wanted that of {self.checkpoint.path!r}")
        shapes = {name: tuple(value.shape) for name, value in self.model.state_dict().items()}
        if shapes != {name: tuple(value.shape) for name, value in fresh.state_dict().items()}:
            raise ValueError(f"checkpoint {str(path)!r}: got other parameter shapes, wanted those of {self.checkpoint.path!r}")
        self.decoder.reset()
        self.model.load_state_dict(fresh.state_dict())
        self.checkpoint = checkpoint

    def close(self) -> None:
        """End the thread and free the store. Requests still under way never finish."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        del self.decoder
