"""Players behind real local HTTP servers: episodes as the policy plays them, refusals, outages, and ids with log-probabilities."""

import asyncio
import contextlib
import dataclasses
import http.server
import itertools
import json
import os
import pathlib
import re
import threading
import time

import pytest

from data.chat import Refused
from data.records import Baselines, Candidate, SandboxError, Task, ToolResult, Verdict
from policy.endpoint import ChatPlayer, EndpointSampler, _read
from policy.episode import play
from policy.prompt import MALFORMED, ParseError, Prompt, Segment, call_text, parse

TASK = Task(source="class Model: ...\n", origin="user")


@contextlib.contextmanager
def served(answer):
    """A server whose answer(path, body, headers) gives (status, object) or (status, object, headers), or raises to hang up."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
            seen.append((self.path, body, dict(self.headers)))
            status, value, *more = answer(self.path, body, dict(self.headers))
            self.send_response(status)
            for name, text in (more[0] if more else {}).items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(value if isinstance(value, bytes) else json.dumps(value).encode())

        do_GET = do_POST

        def log_message(self, *args):
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


# ------------------------------------------------------------------------------------------------ chat


def called(*calls, content=None, finish="tool_calls", usage=(100, 10)):
    """A chat completion with tool calls (name, arguments as object or text)."""
    made = [
        {"id": f"id-{name}-{i}", "type": "function", "function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)}}
        for i, (name, a) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": made}
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": counts}


def verdict(status="correct"):
    reason, times = (None, {"candidate": 1.0}) if status == "correct" else ("because", None)
    return Verdict(status=status, reason=reason, task=TASK.id, candidate="c", backend="cpp", policy="libraries_allowed", times_ms=times)


class Workspace:
    task = TASK

    def __init__(self):
        self.files = {}

    async def run(self, tool, args):
        if tool == "write":
            self.files[args["path"]] = args["content"]
        return ToolResult(text=f"{tool} done", done=tool == "submit")

    def candidate(self):
        return Candidate(format="cpp", files=self.files) if self.files else None

    async def judge(self):
        return verdict("correct" if self.files else "incorrect")


def player(address, **more):
    options = {"format": "cpp", "backend": "cpp", "max_turns": 4, "key_from": "", "retry_s": 0.001, "timeout_s": 5.0} | more
    return ChatPlayer(f"{address}/v1", "some-model", **options)


def episode(generate, *, tokenizer=None, **more):
    prompt = Prompt(tokenizer, format="cpp", backend="cpp", max_turns=4)
    settings = {"max_turns": 4, "max_new_tokens": 256, "context": 4000, "seed": 7} | more
    reward = lambda v: 1.0 if v.correct else -1.0
    ids = {"checkpoint": "endpoint", "stage": "s", "round": 0, "sample": 0}
    return play(TASK, generate, Workspace(), prompt=prompt, reward=reward, **ids, **settings)


def run(chat, **more):
    return asyncio.run(episode(chat.episode(TASK), **more))


CODE = 'extern "C" void f(float* x) { x[0] = 1 < 2; }\n'
SCRIPT = [
    called(("read", {"path": "SKILL.md"})),
    called(("write", {"path": "a.cpp", "content": CODE}), ("verify", ""), content="A first version.", usage=(200, 30)),
    called(("submit", "{}"), usage=(300, 5)),
]


def scripted(replies):
    rest = iter(replies)
    return lambda path, body, headers: (200, next(rest))


def test_a_chat_model_plays_the_same_episode_with_its_own_tool_calls(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-of-the-test")
    with served(scripted(SCRIPT)) as (address, seen):
        chat = player(address, key_from="SOME_KEY", prices=(2.0, 10.0), options={"seed": None, "top_p": 0.9})
        answers, generate = [], chat.episode(TASK)

        async def kept(*args, **keywords):
            answers.append(await generate(*args, **keywords))
            return answers[-1]

        got = asyncio.run(episode(kept))
    assert (got.stop, got.reward, len(got.turns)) == ("done", 1.0, 3)
    assert [[c.tool for c in t.tool_calls] for t in got.turns] == [["read"], ["write", "verify"], ["submit"]]
    assert got.turns[1].text.startswith("A first version.\n<tool_call>") and got.candidate.files == {"a.cpp": CODE.removesuffix("\n")}
    assert [(a.prompt_tokens, a.completion_tokens) for a in answers] == [(100, 10), (200, 30), (300, 5)]
    assert sum(a.cost for a in answers) == pytest.approx((600 * 2 + 45 * 10) / 1e6)
    path, first, headers = seen[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer sk-of-the-test"
    assert "sk-of-the-test" not in json.dumps(got.to_dict()) + json.dumps([body for _, body, _ in seen])
    assert (first["model"], first["max_tokens"], first["top_p"], "seed" in first) == ("some-model", 256, 0.9, False)
    assert {t["function"]["name"] for t in first["tools"]} == {"write", "read", "compile", "verify", "profile", "submit"}
    talks = [body["messages"] for _, body, _ in seen]
    assert all(longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(talks))
    *_, said, early, late = talks[-1]
    assert [c["id"] for c in said["tool_calls"]] == [early["tool_call_id"], late["tool_call_id"]] and early["role"] == late[
        "role"
    ] == "tool"
    assert json.loads(said["tool_calls"][0]["function"]["arguments"])["content"] == CODE and late["content"] == "write done\nverify done"


def test_its_turns_become_ids_of_a_student_for_imitation_and_never_for_ppo(tokenizer):
    from policy.batch import rows

    with served(scripted(SCRIPT)) as (address, _):
        got = run(player(address), tokenizer=tokenizer)
    assert tokenizer.decode(got.turns[0].action_ids[:-1]) == call_text("read", path="SKILL.md")
    assert len(rows([got], rewarded=True, sampled=False)) == 1
    with pytest.raises(ValueError, match="without log-probabilities"):
        rows([got], rewarded=True, sampled=True)


@pytest.mark.parametrize(
    "content", ["x = 1\n\n", "\nint a;", "a </parameter>\n<parameter=path>\nb", "<tool_call>\n{}\n</tool_call>\n", "ü\t\u2028"]
)
def test_any_code_arrives_as_the_server_sent_it(content):
    text = _read(called(("write", {"path": "a.cpp", "content": content})))[1]
    (call,) = parse(text)
    assert call.tool == "write" and call.args["content"] in (content, content.removesuffix("\n"))


@pytest.mark.parametrize(
    "call",
    [
        ("write", '{"path": "a.cpp", "content": "int'),
        ("write", "[1]"),
        ("write", {"path": "a.cpp", "content": 5}),
        ("write", {"path": "a.cpp"}),
        ("compile", {"tool": "x"}),
        ("fly", {}),
        (None, {}),
    ],
)
def test_a_half_tool_call_is_the_models_and_is_answered_with_a_line(call):
    back, text, ids, _, _ = _read(called(call))
    assert isinstance(parse(text), ParseError)
    # Servers render the arguments of earlier calls from JSON: half of one would make them refuse the conversation
    assert ids or back == {"role": "assistant", "content": text}
    with served(scripted([called(call), *SCRIPT[1:]])) as (address, seen):
        got = run(player(address))
    assert got.turns[0].tool_calls[0].tool == MALFORMED and got.stop == "done" and got.reward == 1.0
    assert seen[1][1]["messages"][-1]["content"].startswith("malformed") and seen[1][1]["messages"][-1]["role"] in ("tool", "user")


def test_text_with_half_a_surrogate_pair_can_be_kept():
    text = _read(called(content="\ud800 x"))[1]
    assert text.encode() == b"? x"


def test_a_server_without_a_tool_parser_may_answer_in_text():
    texts = [call_text("write", path="a.cpp", content="x") + call_text("verify"), call_text("submit")]
    replies = [{"choices": [{"message": {"role": "assistant", "content": t}, "finish_reason": "stop"}]} for t in texts]
    with served(scripted(replies)) as (address, seen):
        got = run(player(address))
    assert got.stop == "done" and got.reward == 1.0 and seen[1][1]["messages"][-1] == {"role": "user", "content": "write done\nverify done"}


BROKEN = {
    "down": lambda: (503, {"error": "no backend"}),
    "no choices": lambda: (200, {"choices": []}),
    "an error in place of an answer": lambda: (200, {"error": {"message": "upstream"}}),
    "wrong role": lambda: (200, {"choices": [{"message": {"role": "user", "content": "x"}, "finish_reason": "stop"}]}),
    "no object": lambda: (200, ["x"]),
    "no JSON": lambda: (200, b"<html>"),
    "hangs up": lambda: (_ for _ in ()).throw(ConnectionAbortedError()),
    "slow": lambda: time.sleep(0.5) or (200, SCRIPT[0]),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_server_is_our_failure_and_other_episodes_go_on(fault):
    broken = Task(source="class Model: 'broken'\n", origin="user")
    rest = iter(SCRIPT)

    def answer(path, body, headers):
        return BROKEN[fault]() if "broken" in body["messages"][1]["content"] else (200, next(rest))

    with served(answer) as (address, seen):
        chat = player(address, timeout_s=0.2)

        async def both():
            return await asyncio.gather(episode(chat.episode(broken)), episode(chat.episode(TASK)))

        lost, played = asyncio.run(both())
    assert lost.stop == "infra_error" and lost.reward is None and lost.error.startswith(f"{address}/v1: got ") and "\n" not in lost.error
    assert played.stop == "done" and played.reward == 1.0
    assert sum("broken" in body["messages"][1]["content"] for _, body, _ in seen) == 4


def test_a_busy_server_is_asked_again_when_it_says():
    replies = iter([(429, {"error": "slow down"}, {"Retry-After": "0.3"}), (500, {}), *((200, r) for r in SCRIPT)])
    with served(lambda *_: next(replies)) as (address, seen):
        started = time.monotonic()
        got = run(player(address))
    assert got.stop == "done" and len(seen) == 5 and time.monotonic() - started >= 0.3


def test_requests_keep_to_the_rate_limit():
    times = []

    def answer(path, body, headers):
        times.append(time.monotonic())
        return 200, called(("submit", {}))

    with served(answer) as (address, _):
        chat = player(address, per_minute=600)

        async def several():
            await asyncio.gather(*(episode(chat.episode(TASK)) for _ in range(4)))

        asyncio.run(several())
    assert len(times) == 4 and max(times) - min(times) >= 0.25


def test_no_more_requests_are_in_flight_than_asked_for():
    lock, now, most = threading.Lock(), [0], [0]

    def answer(path, body, headers):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return 200, called(("submit", {}))

    with served(answer) as (address, seen):
        chat = player(address, in_flight=3)

        async def many():
            return await asyncio.gather(*(episode(chat.episode(TASK)) for _ in range(24)))

        played = asyncio.run(many())
    assert most[0] == 3 and len(seen) == 24 and all(t.stop == "done" for t in played)


def test_a_redirection_does_not_get_the_key(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-of-the-test")
    with served(lambda *_: (200, SCRIPT[2])) as (elsewhere, got):
        with served(lambda *_: (302, {}, {"Location": f"{elsewhere}/v1/chat/completions"})) as (address, asked):
            run(player(address, key_from="SOME_KEY"))
    assert "Authorization" in asked[0][2] and got and "Authorization" not in got[0][2]


@pytest.mark.parametrize(
    ("status", "words"), [(401, "bad key"), (404, "no such model"), (429, "insufficient_quota"), (400, "no tools here")]
)
def test_a_refusal_of_key_model_or_parameters_is_one_line_and_not_asked_again(status, words):
    with served(lambda *_: (status, {"error": words})) as (address, seen):
        with pytest.raises(Refused, match=rf"v1: got {status} .*{words}.*, wanted a chat completion"):
            run(player(address))
    assert len(seen) == 1


def test_a_key_in_the_servers_words_is_not_repeated(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-of-the-test")
    with served(lambda path, body, headers: (401, {"error": headers["Authorization"]})) as (address, _):
        with pytest.raises(Refused, match=r"Bearer \*\*\*"):
            run(player(address, key_from="SOME_KEY"))


def test_a_missing_key_or_bad_address_is_told_at_once(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ValueError, match="NO_SUCH_KEY: got nothing in the environment, wanted the key of http"):
        player("http://127.0.0.1:9", key_from="NO_SUCH_KEY")
    with pytest.raises(ValueError, match="address: got 'ftp:"):
        player("ftp://x")


def test_a_conversation_refused_alone_is_left_out_once_the_server_has_answered():
    replies = iter([(200, SCRIPT[0]), (400, {"error": "content filter"})])
    with served(lambda *_: next(replies)) as (address, _):
        got = run(player(address))
    assert got.stop == "infra_error" and "content filter" in got.error and len(got.turns) == 1
    with served(lambda *_: (400, {"error": "content filter"})) as (address, _):
        chat = player(address)
        chat.answered = 1  # by an earlier start
        assert run(chat).stop == "infra_error"


def test_a_conversation_too_long_ends_with_what_stands():
    replies = iter([(200, SCRIPT[1]), (400, {"error": {"code": "context_length_exceeded", "message": "too long"}})])
    with served(lambda *_: next(replies)) as (address, seen):
        got = run(player(address))
    assert len(seen) == 2 and got.reward == 1.0 and [t.finish_reason for t in got.turns] == ["stop", "length", "length", "length"]
    with served(lambda *_: (400, {"error": {"code": "context_length_exceeded"}})) as (address, _):
        with pytest.raises(Refused, match="context_length_exceeded"):
            run(player(address))


def test_the_context_is_kept_by_the_counts_of_the_server():
    with served(scripted([called(("verify", ""), usage=(300, 50)), called(("verify", ""), usage=(900, 60))])) as (address, seen):
        got = run(player(address, context=1000))
    assert [body["max_tokens"] for _, body, _ in seen] == [256, 256] and len(got.turns) == 4 and got.turns[-1].text == ""


def test_a_cut_answer_is_length():
    with served(scripted([called(("write", '{"path": "a'), finish="length"), SCRIPT[2]])) as (address, _):
        got = run(player(address))
    assert got.turns[0].finish_reason == "length" and [c.tool for c in got.turns[0].tool_calls] == [MALFORMED]


# ----------------------------------------------------------------------------------- vLLM and SGLang


class Engine:
    """What a vLLM and an SGLang server answer, sampled for real from the checkpoint that they were told to load."""

    def __init__(self, path=None):
        self.version, self.edit, self.fail, self.log = "default", lambda answer: answer, {}, []
        self.model, self.held = None, 0
        if path:
            self.load(path)

    def load(self, path):
        from policy import model

        self.model, self.tokenizer, _ = model.load(path)

    def __call__(self, path, body, headers):
        self.log.append(path)
        if path in self.fail:
            return self.fail[path]
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "served", "object": "model"}]}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            self.load(body["kwargs"]["weights_path"])
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            self.held = max(0, self.held - 1)
            return 200, {"success": False} if self.held else b""
        if path == "/update_weights_from_disk":
            self.load(body["model_path"])
            self.version = body["weight_version"]
            return 200, {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        return 200, self.edit(self.vllm(body) if path == "/v1/completions" else self.sglang(body))

    def sample(self, ids, count, stop, temperature, seed):
        import torch

        draw, sampled, logprobs = torch.Generator().manual_seed(seed), [], []
        with torch.no_grad():
            while len(sampled) < count and not (sampled and sampled[-1] in stop):
                logits = self.model(torch.tensor([[*ids, *sampled]])).logits[0, -1]
                each = torch.log_softmax(logits / temperature, -1)
                token = int(torch.multinomial(each.exp(), 1, generator=draw))
                sampled.append(token)
                logprobs.append(float(each[token]))
        return sampled, logprobs, sampled[-1] if sampled[-1] in stop else None

    def vllm(self, body):
        off = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        assert off.items() <= body.items() and body["model"] == "served" and body["return_token_ids"] and body["logprobs"] == 0
        ids, logprobs, matched = self.sample(body["prompt"], body["max_tokens"], body["stop_token_ids"], body["temperature"], body["seed"])
        choice = {
            "index": 0,
            "text": self.tokenizer.decode(ids, skip_special_tokens=True),
            "logprobs": {"tokens": ["?"] * len(ids), "token_logprobs": logprobs, "top_logprobs": [{}] * len(ids), "text_offset": []},
            "finish_reason": "length" if matched is None else "stop",
            # The model's own end token is no stop_reason
            "stop_reason": None if matched in (None, self.tokenizer.eos_token_id) else matched,
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
        }
        return {"object": "text_completion", "choices": [choice], "usage": {}}

    def sglang(self, body):
        assert body["return_logprob"] and "text" not in body
        p = body["sampling_params"]
        assert (p["top_p"], p["top_k"], p["min_p"], p["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)
        stop = p["stop_token_ids"]
        ids, logprobs, matched = self.sample(body["input_ids"], p["max_new_tokens"], stop, p["temperature"], p["sampling_seed"])
        finish = {"type": "length", "length": len(ids)} if matched is None else {"type": "stop", "matched": matched}
        pairs = [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)]
        meta = {"finish_reason": finish, "prompt_tokens": len(body["input_ids"]), "weight_version": self.version}
        trimmed = ids if matched is None else ids[:-1]
        return {"text": "?", "output_ids": trimmed, "meta_info": meta | {"output_token_logprobs": pairs, "completion_tokens": len(ids)}}


@pytest.fixture(params=["vllm", "sglang"])
def kind(request):
    return request.param


def prompt_of(sampler):
    return Prompt(sampler.tokenizer, format="cpp", backend="cpp", max_turns=3).opening(TASK)


def sampled(sampler, count=12, seed=3):
    return asyncio.run(sampler.generate(prompt_of(sampler), max_new_tokens=count, seed=seed))


def test_ids_go_in_and_ids_with_the_policys_log_probabilities_come_out(small, kind):
    import torch

    from policy.sampler import HfSampler

    engine = Engine()
    with served(engine) as (address, seen):
        sampler = EndpointSampler(small, address=f"{address}/v1/", server=kind, key_from="")
        got = [sampled(sampler, seed=seed) for seed in range(6)]
        assert sampled(sampler, seed=2) == got[2] and len({g.ids for g in got}) > 1
        sampler.close()
    embedded = HfSampler(small)
    assert (sampler.checkpoint, set(sampler.stop_ids)) == (embedded.checkpoint, set(embedded.decoder.stop_ids))
    embedded.close()
    ids = [i for segment in prompt_of(sampler) for i in segment.ids]
    asked = next(body for path, body, _ in seen if path in ("/v1/completions", "/generate"))
    assert asked.get("prompt", asked.get("input_ids")) == ids
    for answer in got:
        with torch.no_grad():
            logits = engine.model(torch.tensor([[*ids, *answer.ids]])).logits[0, len(ids) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(answer.logprobs), expected, atol=1e-5)
        assert answer.policy_version == sampler.checkpoint.id
        assert answer.text == sampler.tokenizer.decode(answer.ids, skip_special_tokens=True)
        assert (answer.finish_reason == "stop") == (answer.ids[-1] in sampler.stop_ids) and len(answer.ids) <= 12


def test_the_end_of_turn_is_an_action_and_ends_the_episode_as_with_the_embedded_sampler(small, kind):
    engine = Engine()
    with served(engine) as (address, _):
        sampler = EndpointSampler(small, address=address, server=kind)
        real = engine.sample
        end = sampler.tokenizer.convert_tokens_to_ids("<|im_end|>")
        engine.sample = lambda *a: ((found := real(*a))[0][:2] + [end], found[1][:2] + [-0.1], end)
        got = asyncio.run(episode(sampler.generate, tokenizer=sampler.tokenizer, context=500, max_new_tokens=20))
    assert all(turn.action_ids[-1] == end and turn.finish_reason == "stop" and turn.observation_ids[:1] != (end,) for turn in got.turns)
    assert all(len(turn.action_logprobs) == 3 for turn in got.turns)


def test_a_refresh_by_path_changes_weights_and_version(small, kind, tokenizer, tmp_path):
    from tests.policy.conftest import make

    other = make(tokenizer, tmp_path / "other", seed=5)
    engine = Engine()
    with served(engine) as (address, _):
        sampler = EndpointSampler(small, address=address, server=kind, retry_s=0.001)
        before = sampled(sampler)
        engine.held = 3
        sampler.reload(other)
        after = sampled(sampler)
        assert before.policy_version != after.policy_version == sampler.checkpoint.id and before.logprobs != after.logprobs
        if kind == "vllm":
            after_load = engine.log[len(engine.log) - engine.log[::-1].index("/collective_rpc") :]
            assert after_load == ["/reset_prefix_cache"] * 3 + ["/v1/completions"]
        strange = make(tokenizer, tmp_path / "strange", seed=6)
        text = (strange / "checkpoint.json").read_text()
        record = json.loads(text)
        (strange / "checkpoint.json").write_text(json.dumps(record | {"template": "0" * 64}))
        with pytest.raises(ValueError, match="got another tokenizer or template"):
            sampler.reload(strange)
        # A refresh that fails half way leaves weights that nobody knows
        (strange / "checkpoint.json").write_text(text)
        path = "/collective_rpc" if kind == "vllm" else "/update_weights_from_disk"
        for failure in ((500, {"error": "shape"}), (200, {"success": False, "message": "shape"})):
            engine.fail = {path: failure}
            with pytest.raises(OSError, match=r"shape.*, wanted the weights of .* loaded"):
                sampler.reload(strange)
            with pytest.raises(ValueError, match="failed refresh"):
                sampled(sampler)
        engine.fail = {}
        sampler.reload(other)
        assert sampled(sampler) == after
        if kind == "vllm":
            engine.held = 99
            with pytest.raises(OSError, match="wanted an empty prefix cache"):
                sampler.reload(small)


def test_no_refresh_while_requests_are_under_way(small, kind):
    engine, hold = Engine(), threading.Event()
    engine.edit = lambda answer: hold.wait(10) and answer
    with served(engine) as (address, _):
        sampler = EndpointSampler(small, address=address, server=kind)

        async def both():
            task = asyncio.create_task(sampler.generate(prompt_of(sampler), max_new_tokens=4, seed=0))
            while not sampler.under_way:
                await asyncio.sleep(0.01)
            with pytest.raises(ValueError, match="got 1 requests under way, wanted none"):
                sampler.reload(small)
            hold.set()
            return await task

        assert len(asyncio.run(both()).ids) > 0 and sampler.under_way == 0


def edited(kind, **changes):
    """Changes the one answer: ids, logprobs, prompt, reason, matched by the server's own names."""

    def edit(answer):
        if kind == "vllm":
            choice, names = (
                answer["choices"][0],
                {"ids": "token_ids", "prompt": "prompt_token_ids", "reason": "finish_reason", "matched": "stop_reason"},
            )
            for name, value in changes.items():
                if name == "logprobs":
                    choice["logprobs"] = value and {"token_logprobs": value(choice["logprobs"]["token_logprobs"])}
                else:
                    choice[names[name]] = value(choice[names[name]]) if callable(value) else value
            return answer
        meta = answer["meta_info"]
        for name, value in changes.items():
            if name == "logprobs" and value is None:
                del meta["output_token_logprobs"]
            elif name == "logprobs":
                pairs = meta["output_token_logprobs"]
                meta["output_token_logprobs"] = [
                    [p, pair[1], None] for p, pair in zip(value([pair[0] for pair in pairs]), pairs, strict=False)
                ]
            elif name == "ids":
                del answer["output_ids"], meta["output_token_logprobs"]
            elif name == "prompt":
                meta["prompt_tokens"] += 1
            else:
                meta["finish_reason"] = meta["finish_reason"] | {{"reason": "type", "matched": "matched"}[name]: value}
        return answer

    return edit


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ids": None}, "got a completion without token ids, wanted them: PPO cannot learn from text alone"),
        ({"logprobs": None}, "got a completion without log-probabilities, wanted them"),
        ({"logprobs": lambda values: [None, *values[1:]]}, "got log-probabilities that are missing"),
        ({"logprobs": lambda values: [0.5, *values[1:]]}, "got log-probabilities that are missing, positive"),
        ({"logprobs": lambda values: [float("nan"), *values[1:]]}, "not finite"),
        ({"prompt": lambda ids: [1, *ids]}, "got a completion of another prompt"),
        ({"reason": "stop", "matched": 999}, "got a stop whose token is not among the ids"),
    ],
)
def test_an_answer_that_ppo_cannot_learn_from_is_refused(small, kind, changes, said):
    engine = Engine()
    engine.edit = edited(kind, **changes)
    with served(engine) as (address, _):
        sampler = EndpointSampler(small, address=address, server=kind)
        with pytest.raises(ValueError, match=f"{address}: .*{said}"):
            sampled(sampler)


def test_another_number_of_log_probabilities_than_ids_is_refused(small):
    engine = Engine()
    engine.edit = edited("vllm", logprobs=lambda values: values[1:])
    with served(engine) as (address, _):
        with pytest.raises(ValueError, match=r"ids and .* log-probabilities, wanted 1 to 12 of each"):
            sampled(EndpointSampler(small, address=address, server="vllm"))


def test_an_outage_or_an_aborted_request_is_our_failure_and_a_refusal_the_users(small, kind):
    engine = Engine()
    path = "/v1/completions" if kind == "vllm" else "/generate"
    with served(engine) as (address, _):
        sampler = EndpointSampler(small, address=address, server=kind, retry_s=0.001)
        for fault in ({"fail": {path: (503, {})}}, {"edit": edited(kind, reason="abort")}):
            engine.fail, engine.edit = fault.get("fail", {}), fault.get("edit", lambda answer: answer)
            with pytest.raises(SandboxError, match="wanted a completion of token ids"):
                sampled(sampler)
        engine.fail = {path: (400, {"message": "max_tokens"})}
        with pytest.raises(Refused, match="400"):
            sampled(sampler)


@pytest.mark.parametrize("version", ["somebody-else", "default"])
def test_weights_that_somebody_else_loaded_are_noticed(small, version):
    engine = Engine()
    with served(engine) as (address, _):
        sampler = EndpointSampler(small, address=address, server="sglang")
        assert sampled(sampler).policy_version == engine.version
        engine.version = version  # refreshed by another run, or the server was started anew
        with pytest.raises(SandboxError, match=f"got an answer of the weights '{version}'"):
            sampled(sampler)


def test_arguments_that_would_falsify_the_log_probabilities_are_refused(small, tmp_path):
    with served(Engine(small)) as (address, _):
        with pytest.raises(ValueError, match="server: got 'ollama', wanted vllm or sglang"):
            EndpointSampler(small, address=address, server="ollama")
        with pytest.raises(ValueError, match=r"temperature: got 0\.7, wanted 1, or a vLLM with --logprobs-mode processed_logprobs"):
            EndpointSampler(small, address=address, temperature=0.7)
        with pytest.raises(ValueError, match="temperature: got 0"):
            EndpointSampler(small, address=address, server="sglang", temperature=0)
        with pytest.raises(ValueError, match="model path: got"):
            EndpointSampler(tmp_path, address=address)
        warm = EndpointSampler(small, address=address, temperature=0.7, processed_logprobs=True, context=60, refresh=False)
        opening = prompt_of(warm)
        room = 60 - sum(len(s.ids) for s in opening)
        if room > 0:
            assert len(sampled(warm, count=50).ids) <= room
        with pytest.raises(ValueError, match="wanted fewer than the context of 60"):
            asyncio.run(warm.generate([*opening, dataclasses.replace(opening[0], ids=(5,) * 60)], max_new_tokens=4, seed=0))
        with pytest.raises(ValueError, match="got user text without ids"):
            asyncio.run(warm.generate([Segment(role="user", text="x")], max_new_tokens=4, seed=0))


def test_the_stages_play_with_a_served_policy_where_the_environment_says_so(small, kind, monkeypatch, tmp_path):
    import types

    from stages import params, play
    from stages.stage import Job

    checked = params.load(pathlib.Path(__file__).parents[2] / "stages/presets/tiny.yaml")
    values = types.SimpleNamespace(machine=checked.machine, episode=checked.episode)
    job = Job(name="collect", key=None, params=values, work=tmp_path, root=small.parent)
    with served(Engine()) as (address, seen):
        monkeypatch.setenv("CUDA_AGENT_SAMPLER", f"{kind}={address}")
        monkeypatch.setenv("CUDA_AGENT_SAMPLER_KEY", "sk-of-the-test")
        player = play.sampler(job, small.name)
        got = sampled(player)
    assert player.context == checked.episode.context and got.policy_version == player.checkpoint.id and len(got.logprobs) == len(got.ids)
    assert all(headers["Authorization"] == "Bearer sk-of-the-test" for _, _, headers in seen)
    monkeypatch.setenv("CUDA_AGENT_SAMPLER", "http://127.0.0.1:8000")
    with pytest.raises(ValueError, match=r"server: got 'http://127\.0\.0\.1:8000', wanted vllm or sglang"):
        play.sampler(job, small.name)
    monkeypatch.setenv("CUDA_AGENT_SAMPLER", "vllm")
    with pytest.raises(ValueError, match="address: got '', wanted http"):
        play.sampler(job, small.name)


# --------------------------------------------------------------------------------------- the command

RELU = pathlib.Path(__file__).parents[1] / "sandbox/tasks/relu.py"
RIGHT = """extern "C" void relu(const float* x, float* out, long n) {
    for (long i = 0; i < n; i++) out[i] = x[i] > 0.0f ? x[i] : (x[i] == x[i] ? 0.0f : x[i]);
}
"""
MODULE = """import cuda_extension
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.relu(x, out, x.numel())
        return out
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with params.yaml and one held-out task whose baselines are made up: no torch.compile in this test."""
    import torch

    from data.store import write_tasks
    from sandbox.cpp import cpu_model
    from stages import stage

    environment = {"cpu": cpu_model(), "torch": torch.__version__, "threads": 1}
    known = Baselines(eager_ms=1.0, compile_ms=1.0, environment=environment)
    task = Task(source=RELU.read_text(), origin="user", operators=("relu",), split="test", baselines=known)
    write_tasks(tmp_path / "tasks.parquet", [task])
    root = pathlib.Path(__file__).parents[2]
    (tmp_path / "params.yaml").write_text((root / "stages/presets/tiny.yaml").read_text().replace("slots: 0", "slots: 1"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "_die_with_parent", lambda: None)
    return tmp_path


def command(address, *more):
    from stages import endpoint

    return endpoint.main(["--address", f"{address}/v1", "--model", "some/model", "--tasks", "tasks.parquet", "--turns", "4", *more])


def test_a_served_model_is_judged_for_real_from_the_command_line(project, monkeypatch, capfd):
    from data.store import read_trajectories

    monkeypatch.setenv("SOME_KEY", "sk-of-the-test")
    files = [("write", {"path": "model_new.py", "content": MODULE}), ("verify", {})]
    wrong = called(("write", {"path": "kernels/kernel.cpp", "content": RIGHT.replace("0.0f :", "1.0f :")}), *files, usage=(900, 300))
    right = called(("write", {"path": "kernels/kernel.cpp", "content": RIGHT}), ("verify", {}), usage=(1300, 120))
    outage = [(503, {"error": "no backend"})] * 4
    answers = iter([(200, SCRIPT[0]), (200, wrong), (200, right), (200, SCRIPT[2]), (200, SCRIPT[0]), *outage, (200, SCRIPT[2])])
    with served(lambda *_: next(answers)) as (address, seen):
        monkeypatch.setattr("data.chat.Client._wait_s", lambda self, attempt: 0.0)
        options = ["--key-from", "SOME_KEY", "--prices", "2", "10"]
        assert command(address, *options) == 0
        told = capfd.readouterr().out
        asked = len(seen)
        assert command(address, *options) == 0 and len(seen) == asked, "a finished episode is not paid for twice"
        capfd.readouterr()
        assert command(address, *options, "--samples", "2") == 0
        (played, lost) = sorted(read_trajectories("artifacts/endpoint/some-model/trajectories"), key=lambda t: t.sample)
        body = json.loads(pathlib.Path("artifacts/endpoint/some-model/results.json").read_text())
        assert command(address, *options, "--samples", "2") == 0
        (_, again) = sorted(read_trajectories("artifacts/endpoint/some-model/trajectories"), key=lambda t: t.sample)
    assert [t.verdict.status.value for t in played.turns if t.verdict] == ["incorrect", "correct"]
    assert played.stop == "done" and played.verdict.correct and played.verdict.times_ms["candidate"] > 0 and played.reward >= 1.0
    assert played.candidate.files["kernels/kernel.cpp"] == RIGHT and played.checkpoint == "endpoint:some/model"
    assert played.turns[1].observation.startswith("ok\nok\nincorrect (stress): ")
    assert lost.stop == "infra_error" and lost.reward is None and "503" in lost.error
    assert (again.id, again.stop, again.reward) == (lost.id, "done", -1.0), "what the endpoint lost is played by the next start"
    assert body["figures"]["pass_rate"] == 1.0 and body["figures"]["left_out"] == 1
    assert body["usage"] == {
        "answers": 5,
        "prompt_tokens": 2700,
        "completion_tokens": 445,
        "cost": pytest.approx((2700 * 2 + 445 * 10) / 1e6),
    }
    assert [row["usage"]["prompt_tokens"] for row in sorted(body["episodes"], key=lambda row: row["sample"])] == [2600, 100]
    assert "100% correct" in told and "2600 prompt and 435 completion tokens, cost 0.00955" in told
    assert not [path for path in project.rglob("*") if path.is_file() and b"sk-of-the-test" in path.read_bytes()]


def test_episodes_for_a_student_are_in_its_ids_and_behind_its_opening(project, small, tokenizer):
    from data.store import read_trajectories
    from policy.batch import rows

    with served(lambda *_: (200, SCRIPT[2])) as (address, seen):
        assert command(address, "--key-from", "", "--student", str(small), "--out", "here") == 0
    (got,) = read_trajectories("here/trajectories")
    opening = tokenizer.decode(got.turns[0].prompt_ids)
    assert "Write cpp kernels as cuda_extension." in opening and "class Model" not in opening, "the student sees the graph"
    assert seen[0][1]["messages"][1]["content"] == RELU.read_text()
    assert (
        tokenizer.decode(got.turns[0].action_ids) == call_text("submit") + "<|im_end|>"
        and len(rows([got], rewarded=True, sampled=False)) == 1
    )


def test_a_stopped_command_ends_at_once_and_goes_on_where_it_was(project, monkeypatch, capfd):
    import signal
    import subprocess
    import sys

    root, hold, replies = pathlib.Path(__file__).parents[2], threading.Event(), iter([SCRIPT[2]])

    def answer(*_):
        reply = next(replies, None)
        if reply is None:
            hold.wait(60)
        return 200, reply or SCRIPT[2]

    with served(answer) as (address, seen):
        line = [sys.executable, "-m", "stages.endpoint", "--address", f"{address}/v1", "--model", "some/model", "--tasks", "tasks.parquet"]
        line += ["--turns", "4", "--key-from", "", "--samples", "2", "--in-flight", "1"]
        child = subprocess.Popen(line, env={**os.environ, "PYTHONPATH": str(root)}, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        started = time.monotonic()
        child.send_signal(signal.SIGTERM)
        error = child.communicate(timeout=30)[1]
        assert child.returncode == 143 and "stopped" in error and time.monotonic() - started < 15, "a request on its way holds nobody up"
        hold.set()
        before = len(seen)
        assert command(address, "--key-from", "", "--samples", "2", "--in-flight", "1") == 0 and len(seen) == before + 1
    assert "(2 episodes)" in capfd.readouterr().out


def test_only_a_server_elsewhere_samples_while_the_judge_measures(project, monkeypatch):
    import socket

    from stages import endpoint, play

    for address in ("http://localhost:8000/v1", "http://127.0.0.1/v1", "http://[::1]:1/v1", f"http://{socket.gethostname()}:8000/v1"):
        assert endpoint.local(address)
    assert not endpoint.local("https://api.example.com/v1")
    made = []

    class Gate(play.Gate):
        def __init__(self, exclusive):
            made.append(exclusive)
            super().__init__(exclusive)

    monkeypatch.setattr(play, "Gate", Gate)
    with served(lambda *_: (200, SCRIPT[2])) as (address, _):
        assert command(address, "--key-from", "") == 0
        monkeypatch.setattr(endpoint, "local", lambda address: False)
        assert command(address, "--key-from", "", "--samples", "2") == 0
    assert made == [True, False]


def test_what_is_the_users_is_one_line_and_exit_2(project, monkeypatch, capfd):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    cases = [
        ((), "OPENAI_API_KEY: got nothing in the environment, wanted the key of http"),
        (("--key-from", ""), "got 404 .*no such model.*, wanted a chat completion"),
        (("--key-from", "", "--split", "train"), "tasks.parquet: got no task of the split train, wanted some"),
        (("--key-from", "", "--options", "[1]"), "--options: got .*, wanted a JSON object"),
        (("--key-from", "", "--samples", "0"), "--samples: got 0, wanted 1 or more"),
        (("--key-from", "", "--student", "nowhere"), "model path: got 'nowhere', wanted a folder"),
    ]
    with served(lambda *_: (404, {"error": "no such model"})) as (address, _):
        for more, said in cases:
            assert command(address, *more) == 2
            error = capfd.readouterr().err
            assert re.match(rf"endpoint some-model: .*{said}", error) and error.count("\n") == 1, error
