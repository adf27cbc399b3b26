"""Players behind an HTTP endpoint, with the interface of `policy.sampler`.

`ChatPlayer`: any OpenAI-compatible server with chat completions and tool calling, for evaluation, collection and SFT data. It has no
token ids and no log-probabilities, so PPO refuses what it plays.
`EndpointSampler`: a policy checkpoint served by vLLM or SGLang; prompt ids in, sampled ids and their log-probabilities out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from data.chat import Client, Refused, TooLong, Unavailable
from data.records import SandboxError, Task, ToolCall
from data.tools import BASIC, TABLE
from policy.prompt import call_text, parse
from policy.sampler import Completion

if TYPE_CHECKING:
    from policy.prompt import Segment

LEAST_ROOM = 64
"""Tokens: with less room than this in its context, a chat model is not asked again."""


# ------------------------------------------------------------------------------------------------ chat


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(Completion):
    """A Completion of a chat endpoint, with what it cost. `ids` and `logprobs` are None."""

    prompt_tokens: int | None
    """As the endpoint counts them; None where it does not tell."""
    completion_tokens: int | None
    cost: float | None
    """In the currency of the player's prices; None where the endpoint tells no counts."""


class ChatPlayer:
    """A chat model behind `address` (up to /v1) plays the episodes of the policy: `player.episode(task)` is one episode's `generate`.

    Tool calls of the server become the project's text (`policy.prompt.call_text`), so that loop, workspace, records and SFT rows are
    those of the policy; the conversation goes back as the server wrote it. A server without a tool parser may answer in that text form.
    The endpoint gets an opening of its own (tools as functions, the task's source), whatever opening the episode's Prompt renders.
    prices: (of a prompt token, of a completion token), per million. context: most tokens of the conversation, prompt and answer.
    options: fields added to every request; None takes one out, as {"temperature": None, "max_tokens": None, "max_completion_tokens": 4096}.
    tools: names out of data/tools.py, those of the workspace and of the episode's Prompt.
    key_from, timeout_s, retry_s, in_flight, per_minute: see `data.chat.Client`.

    Raises ValueError for a bad address or a missing key.
    """

    def __init__(
        self,
        address: str,
        model: str,
        *,
        format: str,
        backend: str,
        max_turns: int,
        context: int = 131072,
        temperature: float = 1.0,
        prices: tuple[float, float] = (0.0, 0.0),
        options: Mapping[str, Any] | None = None,
        key_from: str = "OPENAI_API_KEY",
        timeout_s: float = 600.0,
        retry_s: float = 2.0,
        in_flight: int = 32,
        per_minute: float = 0.0,
        tools: tuple[str, ...] = BASIC,
    ):
        self.tools = tools
        self.client = Client(address, key_from=key_from, timeout_s=timeout_s, retry_s=retry_s, in_flight=in_flight, per_minute=per_minute)
        self.model, self.context, self.temperature, self.prices, self.options = model, context, temperature, prices, dict(options or {})
        self.system = (
            f"You write fast {backend} kernels. The user gives a PyTorch module `Model`. Write a `{format}` candidate whose `ModelNew` "
            "computes the same, faster. The workspace holds SKILL.md (rules, file layout, what is tested) and model.py (the task): both "
            "are read-only. Read SKILL.md first. Act by calling the tools; several calls of a turn run in order. "
            f"You have {max_turns} turns. Check with compile, verify and profile; end with submit."
        )
        self.answered = 0
        """Answers so far; whoever goes on where an earlier start was may count those too."""

    def episode(self, task: Task) -> Callable[..., Awaitable[Answer]]:
        """The `generate` of one episode of `task`, for `policy.episode.play`; to be called once a turn, with no other player between.

        It raises SandboxError when the endpoint gives no usable answer (the episode is left out, the model has not failed), and OSError
        when it refuses key, model or parameters. A used-up context answers with empty text and `length` from then on: what stands in
        the workspace is judged.
        """
        history: list[dict[str, Any]] = [{"role": "system", "content": self.system}, {"role": "user", "content": task.source}]
        pending: list[str] = []  # ids of the last turn's tool calls
        used, full = 0, False

        async def generate(segments: Sequence[Segment], *, max_new_tokens: int, seed: int) -> Answer:
            nonlocal used, full
            if segments[-1].role == "tool":
                history.extend(_observation(segments[-1].text, pending))
            room = min(max_new_tokens, self.context - used)
            if full or room < min(LEAST_ROOM, max_new_tokens):
                full = True
                return self._empty()
            body = {"model": self.model, "messages": history, "tools": tools(self.tools), "temperature": self.temperature, "seed": seed}
            body = {k: v for k, v in (body | {"max_tokens": room} | self.options).items() if v is not None}
            first = len(history) == 2
            try:
                message, text, pending[:], reason, usage = await self.client.ask_async("/chat/completions", body, _read)
            except TooLong:
                if first and not self.answered:  # every task would fail for it
                    raise
                full = True
                return self._empty()
            except Unavailable as error:
                raise SandboxError(str(error)) from error
            except Refused as error:
                # Once others were answered, key, model and parameters are right: this conversation alone is refused
                if error.code in (400, 413, 422) and self.answered:
                    raise SandboxError(str(error)) from error
                raise
            self.answered += 1
            history.append(message)
            prompt, sampled = usage
            cost = None if prompt is None or sampled is None else (prompt * self.prices[0] + sampled * self.prices[1]) / 1e6
            used = (prompt or 0) + (sampled or 0)
            counts = {"prompt_tokens": prompt, "completion_tokens": sampled, "cost": cost}
            return Answer(ids=None, logprobs=None, text=text, finish_reason=reason, policy_version=self.model, **counts)

        return generate

    def _empty(self) -> Answer:
        counts = {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0}
        return Answer(ids=None, logprobs=None, text="", finish_reason="length", policy_version=self.model, **counts)

    def close(self) -> None:
        """End the waits between tries."""
        self.client.close()


def tools(names: Sequence[str] = BASIC) -> list[dict[str, Any]]:
    """The workspace's tools as functions of the chat completions API."""
    return [TABLE[name].schema() for name in names]


def _read(answer: Any) -> tuple[dict[str, Any], str, list[str], str, tuple[int | None, int | None]]:
    """(message to send back, the project's text, ids of its tool calls, finish reason, token counts) of a chat completion.

    Raises LookupError, AttributeError, TypeError or ValueError for an answer that holds no assistant's message. A half tool call is no fault of
    the server: its text is one that `parse` calls malformed, and it goes back as plain text.
    """
    choice = answer["choices"][0]
    message = choice["message"]
    role, content, given = message["role"], message.get("content") or "", message.get("tool_calls") or []
    if role != "assistant" or not isinstance(content, str) or not isinstance(given, list):
        raise ValueError(f"message: got role {role!r} and {type(content).__name__} content, wanted assistant and text")
    calls, texts, whole = [], [content] if content else [], True
    for number, call in enumerate(given):
        function = call["function"]
        text, arguments = _call(function.get("name"), function.get("arguments"))
        texts.append(text)
        whole &= arguments is not None
        id = call.get("id") or f"call{number:05d}"
        calls.append({"id": id, "type": "function", "function": {"name": function.get("name"), "arguments": arguments}})
    # Half a surrogate pair, which JSON can spell and UTF-8 cannot, would break every file that keeps the turn
    text = "\n".join(texts).encode("utf-8", "replace").decode()
    back = (
        {"role": "assistant", "content": content or None, "tool_calls": calls}
        if calls and whole
        else {"role": "assistant", "content": text}
    )
    usage = answer.get("usage") or {}
    counts = tuple(n if isinstance(n, int) else None for n in (usage.get("prompt_tokens"), usage.get("completion_tokens")))
    ids = [call["id"] for call in calls] if whole else []
    return back, text, ids, "length" if choice.get("finish_reason") == "length" else "stop", counts


def _call(name: Any, arguments: Any) -> tuple[str, str | None]:
    """A server's tool call as the project's text, and its arguments as JSON to send back: None where they are no JSON object."""
    given = arguments
    if isinstance(arguments, str):
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):  # half a call, or one nested without end
            given = arguments
    if given is None:
        given = {}
    whole = isinstance(name, str) and isinstance(given, dict)
    if whole and "tool" not in given and all(isinstance(value, str) for value in given.values()):
        text = call_text(name, **given)
        kept = {key: value.removesuffix("\n") for key, value in given.items()}
        if parse(text) == [ToolCall(tool=name, args=kept)]:
            return text, json.dumps(given)
    # What the tags cannot carry (values that are no text, code that holds the tags), JSON does
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>", json.dumps(given) if whole else None


def _observation(text: str, calls: Sequence[str]) -> list[dict[str, Any]]:
    """What answers the last turn. The workspace answers a turn as a whole: its text stands with the last call."""
    if not calls:
        return [{"role": "user", "content": text}]
    earlier = [{"role": "tool", "tool_call_id": id, "content": "answered with the last call of this turn"} for id in calls[:-1]]
    return [*earlier, {"role": "tool", "tool_call_id": calls[-1], "content": text}]


# ----------------------------------------------------------------------------------- vLLM and SGLang


class EndpointSampler:
    """A policy checkpoint served by vLLM or SGLang, with the interface of `policy.sampler.HfSampler`.

    Written after the servers' own sources and documentation and tested against a local server that speaks their formats; no real vLLM
    or SGLang was run. checkpoint_path: a folder that the server sees under the same path; its weights are loaded by the server when
    this is made (`refresh`), so that every completion's policy version is what it says. address: the server's root. The model's name
    is asked for. temperature: of every request. context: most tokens of prompt and completion together (default: the server's own).
    server: "vllm" (POST /v1/completions with `return_token_ids`, weights by POST /collective_rpc: start it with VLLM_SERVER_DEV_MODE=1)
    or "sglang" (POST /generate, weights by POST /update_weights_from_disk; the seed counts with --enable-deterministic-inference).
    Log-probabilities are those of the policy that sampled: vLLM gives them before the temperature unless it was started with
    `--logprobs-mode processed_logprobs`, so that another temperature than 1 wants `processed_logprobs=True` here, which says that it was.
    Top-k, top-p and penalties are sent as off, whatever the server's defaults.

    Raises ValueError for a bad argument, a missing key, a folder that is no policy; OSError where the server refuses or does not answer.
    """

    def __init__(
        self,
        checkpoint_path,
        *,
        address: str,
        server: str = "vllm",
        temperature: float = 1.0,
        context: int | None = None,
        processed_logprobs: bool = False,
        refresh: bool = True,
        key_from: str = "",
        timeout_s: float = 600.0,
        retry_s: float = 2.0,
        in_flight: int = 256,
    ):
        from policy import model

        if server not in ("vllm", "sglang"):
            raise ValueError(f"server: got {server!r}, wanted vllm or sglang")
        if not temperature > 0:
            raise ValueError(
                f"temperature: got {temperature}, wanted more than zero: a greedy policy has no log-probabilities to learn from"
            )
        if server == "vllm" and temperature != 1 and not processed_logprobs:
            raise ValueError(f"temperature: got {temperature}, wanted 1, or a vLLM with --logprobs-mode processed_logprobs")
        self.checkpoint, self.tokenizer = model.read_record(checkpoint_path), model.load_tokenizer(checkpoint_path)
        if self.checkpoint.kind == "critic":
            raise ValueError(f"model path: got the critic {str(checkpoint_path)!r}, wanted a policy")
        model.check_template(self.tokenizer)
        stop = {self.tokenizer.eos_token_id, *self.tokenizer.convert_tokens_to_ids([model.END, model.TEXT_END])}
        self.stop_ids = stop - {None, self.tokenizer.unk_token_id}
        self.server, self.temperature, self.context = server, temperature, context
        options = {"key_from": key_from, "timeout_s": timeout_s, "retry_s": retry_s, "in_flight": in_flight}
        self.client = Client(address.rstrip("/").removesuffix("/v1"), **options)
        self.under_way, self.loaded, self.refreshed = 0, True, False
        self.name = None
        if server == "vllm":
            self.name = self.client.ask("/v1/models", None, lambda answer: str(answer["data"][0]["id"]), wanted="a list of models")
        if refresh:
            self._load(checkpoint_path)

    async def generate(self, segments: Sequence[Segment], *, max_new_tokens: int, seed: int) -> Completion:
        """Sample one completion of the concatenated ids: ids [A] with the end-of-turn token, log-probabilities [A] of the sampling policy.

        Raises ValueError for segments without ids, beyond the context, or when the server gives no ids or log-probabilities (PPO can
        learn nothing then); SandboxError when the server is down or serves other weights than this sampler's; OSError when it refuses.
        """
        ids: list[int] = []
        for segment in segments:
            if segment.ids is None:
                raise ValueError(f"segment: got {segment.role} text without ids, wanted ids (a Prompt with a tokenizer)")
            ids.extend(segment.ids)
        if self.context is not None:
            max_new_tokens = min(max_new_tokens, self.context - len(ids))
        if max_new_tokens < 1:
            raise ValueError(f"prompt: got {len(ids)} tokens, wanted fewer than the context of {self.context}")
        if not self.loaded:
            raise ValueError(f"weights of {self.client.address}: got half of a failed refresh, wanted a reload that succeeds")
        version = self.checkpoint.id
        ask, read = (self._vllm, _read_vllm) if self.server == "vllm" else (self._sglang, _read_sglang)
        path, body = ask(ids, max_new_tokens, seed)
        self.under_way += 1
        try:
            answer = await self.client.ask_async(path, body, read, wanted="a completion of token ids")
        except Unavailable as error:
            raise SandboxError(str(error)) from error
        finally:
            self.under_way -= 1
        sampled, logprobs = self._checked(answer, ids, max_new_tokens)
        # "default" is what a server says whose weights nobody has refreshed since it started
        if answer["version"] not in (None, version, None if self.refreshed else "default"):
            raise SandboxError(
                f"{self.client.address}: got an answer of the weights {answer['version']!r}, wanted {version}: someone else refreshed them"
            )
        text = self.tokenizer.decode(sampled, skip_special_tokens=True)
        return Completion(ids=sampled, logprobs=logprobs, text=text, finish_reason=answer["reason"], policy_version=version)

    def _vllm(self, ids: list[int], room: int, seed: int) -> tuple[str, dict[str, Any]]:
        body = {"model": self.name, "prompt": ids, "max_tokens": room, "temperature": self.temperature, "seed": seed}
        off = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        wanted = {"logprobs": 0, "return_token_ids": True, "add_special_tokens": False, "stop_token_ids": sorted(self.stop_ids)}
        return "/v1/completions", body | off | wanted

    def _sglang(self, ids: list[int], room: int, seed: int) -> tuple[str, dict[str, Any]]:
        params = {"max_new_tokens": room, "temperature": self.temperature, "sampling_seed": seed, "stop_token_ids": sorted(self.stop_ids)}
        off = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        return "/generate", {"input_ids": ids, "sampling_params": params | off, "return_logprob": True}

    def _checked(self, answer: Mapping[str, Any], prompt: list[int], room: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Ids and log-probabilities that PPO may learn from, else ValueError."""
        where, ids, logprobs = self.client.address, answer["ids"], answer["logprobs"]
        for name, values in (("token ids", ids), ("log-probabilities", logprobs)):
            if values is None:
                raise ValueError(f"{where}: got a completion without {name}, wanted them: PPO cannot learn from text alone")
        if answer["prompt"] not in (None, prompt, len(prompt)):
            raise ValueError(f"{where}: got a completion of another prompt than the {len(prompt)} tokens sent, wanted these very ids")
        if not 0 < len(ids) <= room or len(logprobs) != len(ids) or not all(isinstance(i, int) for i in ids):
            raise ValueError(f"{where}: got {len(ids)} ids and {len(logprobs)} log-probabilities, wanted 1 to {room} of each")
        if not all(isinstance(p, (int, float)) and math.isfinite(p) and p <= 1e-3 for p in logprobs):
            raise ValueError(f"{where}: got log-probabilities that are missing, positive or not finite, wanted natural logarithms")
        stopped = {answer["matched"]} if isinstance(answer["matched"], int) else self.stop_ids
        if answer["reason"] == "stop" and ids[-1] not in stopped:
            raise ValueError(f"{where}: got a stop whose token is not among the ids, wanted the end-of-turn token, which is an action too")
        return tuple(ids), tuple(map(float, logprobs))

    def reload(self, path) -> None:
        """Make the server take the weights of another checkpoint of the same shape and tokenizer; it forgets every cached key and value.

        Blocks until they are loaded. Raises ValueError while requests are under way, or when the tokenizer differs; OSError where the
        server fails, after which `generate` refuses until a reload has succeeded: its weights may be half of each.
        """
        from policy import model

        if self.under_way:
            raise ValueError(f"reload: got {self.under_way} requests under way, wanted none")
        fresh = model.read_record(path)
        if (fresh.tokenizer, fresh.template) != (self.checkpoint.tokenizer, self.checkpoint.template):
            raise ValueError(f"checkpoint {str(path)!r}: got another tokenizer or template, wanted that of {self.checkpoint.path!r}")
        self.checkpoint = fresh
        self._load(path)

    def _load(self, path) -> None:
        self.loaded, folder = False, str(pathlib.Path(path).resolve())
        if self.server == "sglang":
            body = {"model_path": folder, "weight_version": self.checkpoint.id, "flush_cache": True}
            self.client.ask("/update_weights_from_disk", body, _succeeded, wanted=f"the weights of {folder} loaded", tries=1)
        else:
            body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            self.client.ask("/collective_rpc", body, _succeeded, wanted=f"the weights of {folder} loaded", tries=1)
            # Fails as long as the last request's blocks are held
            self.client.ask("/reset_prefix_cache", {}, _succeeded, wanted="an empty prefix cache")
        self.loaded = self.refreshed = True

    def close(self) -> None:
        """End the waits between tries. The server goes on."""
        self.client.close()


def _read_vllm(answer: Any) -> dict[str, Any]:
    """vLLM, /v1/completions with return_token_ids: choices[0].token_ids, .prompt_token_ids, .logprobs.token_logprobs, .stop_reason."""
    choice = answer["choices"][0]
    reason = _reason(choice["finish_reason"])
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    ids, prompt, matched = choice.get("token_ids"), choice.get("prompt_token_ids"), choice.get("stop_reason")
    return {"ids": ids, "logprobs": logprobs, "prompt": prompt, "matched": matched, "reason": reason, "version": None}


def _read_sglang(answer: Any) -> dict[str, Any]:
    """SGLang, /generate: meta_info.output_token_logprobs is a list of (log-probability, id, text); output_ids may lack the stop token."""
    meta = answer["meta_info"]
    finish, pairs = meta["finish_reason"], meta.get("output_token_logprobs")
    ids, logprobs = (None, None) if pairs is None else ([pair[1] for pair in pairs], [pair[0] for pair in pairs])
    if ids is None:
        ids = answer.get("output_ids")
    found = {"ids": ids, "logprobs": logprobs, "prompt": meta.get("prompt_tokens"), "matched": finish.get("matched")}
    return found | {"reason": _reason(finish["type"]), "version": meta.get("weight_version")}


def _reason(given: str) -> str:
    if given not in ("stop", "length"):
        raise ValueError(f"finish reason: got {given!r}, wanted stop or length")
    return given


def _succeeded(answer: Any) -> None:
    """Raises ValueError where an answer to a control request says that it failed; some servers say nothing on success."""
    if isinstance(answer, dict) and answer.get("success") is False:
        raise ValueError(f"success: got false ({answer.get('message')}), wanted true")
