"""The judge as other trainers see it: their own code asks for rewards, the judgements are real.

The three libraries are no dependencies of ours: docs/rewards.md says how to install each in an environment of its own and run this file there.
"""

import asyncio
import functools
import http.server
import json
import threading

import gallery
import pytest
from conftest import LIMITS, known_task

from data.records import Candidate, SandboxError, Status, Task, Verdict
from policy.reward import robust
from sandbox.pool import let_go
from sandbox.rewards.source import Local, Service, as_candidate, as_task


def reply(kernel: str = "relu", old: str = "", new: str = "") -> str:
    """An honest candidate of the gallery as a model would write it, maybe with a mistake in it."""
    entry = next(e for e in gallery.read("honest") if e.name == kernel)
    blocks = [f"```text {path}\n{text.replace(old, new) if old else text}\n```" for path, text in entry.candidate().files.items()]
    return "Here it is.\n\n" + "\n\n".join(blocks) + "\n\nDone."


REPLIES = (reply(), reply(old="0.0f ? x[i]", new="0.0f ? x[i] * 1.01f"), "I cannot do that.")
STATUSES = ["correct", "incorrect", "format_error"]


@pytest.fixture(scope="module")
def local():
    let_go()
    source = Local(limits=LIMITS, slots=1)
    yield source
    source.close()


class Failing:
    """A source that fails on our side at every second question."""

    def judge(self, pairs):
        task, candidate = pairs[0]
        worked = Verdict(
            status=Status.INCORRECT, reason="made up", task=task.id, candidate=candidate.id, backend="cpp", policy="libraries_allowed"
        )
        return [SandboxError("lost") if n % 2 else worked for n in range(len(pairs))]

    async def judge_async(self, pairs):
        return [SandboxError("lost") for _ in pairs]


# ---- replies and tasks ----


def test_a_reply_becomes_the_files_that_it_names():
    files = as_candidate("a\n```python model_new.py\nimport cuda_extension\n```\nb\n~~~cpp kernels/k.cpp\nvoid f() {}\n~~~\n").files
    assert files == {"model_new.py": "import cuda_extension\n", "kernels/k.cpp": "void f() {}\n"}
    # Blocks without a path: the last one with the class; a block that is cut off is what stands there
    assert as_candidate("```python\nclass ModelNew: 1\n```\n```python\nclass ModelNew: 2\n```\n```\nlog\n```").files == {
        "model_new.py": "class ModelNew: 2\n"
    }
    assert as_candidate("```python\nclass ModelNew:\n    x = ").files == {"model_new.py": "class ModelNew:\n    x = "}
    assert as_candidate([{"role": "assistant", "content": "```json plan.json\n{}\n```"}]).format == "plan"


@pytest.mark.parametrize("text", ["", "no code", "```python ../model_new.py\nx\n```", "```python /etc/passwd\nx\n```", "\ud800", "````"])
def test_any_reply_makes_a_candidate(text):
    assert list(as_candidate(text).files) == ["model_new.py"]
    assert list(as_candidate([{"role": "assistant", "content": text}]).files) == ["model_new.py"]


def test_a_task_comes_as_source_or_as_json():
    task = known_task("relu")
    assert as_task(json.dumps(task.to_dict())) == as_task(task.to_dict()) == as_task(task) == task
    assert as_task(task.source).id == task.id
    # As data sets hand it out: fields that other rows have are None here
    assert as_task({"source": "x = 1", "floor_ms": None, "operators": None}) == Task(source="x = 1", origin="user")
    for wrong in ('{"sauce": 1}', {"source": "x", "colour": 1}, 3, "{"):
        with pytest.raises(ValueError, match="task: got"):
            as_task(wrong)


# ---- sources ----


def test_a_local_source_gives_verdicts_in_order_and_errors_once_it_is_closed(local):
    pairs = [(known_task("relu"), as_candidate(text)) for text in REPLIES]
    assert [v.status.value for v in local.judge(pairs)] == STATUSES
    assert [v.status.value for v in asyncio.run(local.judge_async(pairs[1:]))] == STATUSES[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local.pool, "left", True)
        assert [type(v) for v in local.judge(pairs)] == [SandboxError] * 3


class Told(http.server.BaseHTTPRequestHandler):
    """A service that says what its `answers` say: (method, status, headers, body) in order."""

    protocol_version = "HTTP/1.0"

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.command, self.path))
        status, headers, body = self.server.answers.pop(0)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.headers["Content-Length"] = "0"
        self.do_PUT()

    def log_message(self, *words):
        pass


@pytest.fixture
def told():
    server = http.server.HTTPServer(("127.0.0.1", 0), Told)
    server.seen, server.answers = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def line(item: int, **found) -> bytes:
    return json.dumps({"line": 0, "item": item, **found}).encode() + b"\n"


def test_a_client_comes_back_after_a_full_queue_and_a_cut_stream_under_the_same_id(told):
    (verdict, _) = Failing().judge([(known_task("relu"), Candidate(format="load", files={"model_new.py": ""}))] * 2)
    lost = {"kind": "sandbox", "status": 503, "message": "the slot is gone"}
    told.answers[:] = [
        (429, {"Retry-After": "0"}, b"full"),
        (202, {}, b"{}"),
        (200, {}, b"\n" + line(1, error=lost) + line(0, verdict=verdict.to_dict())[:-9]),
        (200, {}, b"{}"),
        (200, {}, line(1, error=lost) + line(0, verdict=verdict.to_dict())),
    ]
    service = Service(f"http://127.0.0.1:{told.server_port}")
    found = service.judge([(known_task("relu"), as_candidate("x"))] * 2)
    assert found[0] == verdict and isinstance(found[1], SandboxError) and "the slot is gone" in str(found[1])
    assert [m for m, _ in told.seen] == ["PUT", "PUT", "GET", "PUT", "GET"] and len({p for m, p in told.seen if m == "PUT"}) == 1


def test_a_request_that_the_service_refuses_is_the_callers_fault_and_silence_is_ours(told):
    told.answers[:] = [(401, {}, b"authorization: wanted a token")]
    pairs = [(known_task("relu"), as_candidate("x"))]
    with pytest.raises(ValueError, match="service: got 401: authorization"):
        Service(f"http://127.0.0.1:{told.server_port}").judge(pairs)
    (found,) = Service("http://127.0.0.1:9", patience_s=0.5).judge(pairs)
    assert isinstance(found, SandboxError) and "for 0.5 s: ConnectionRefusedError" in str(found)
    with pytest.raises(ValueError, match="service: got 'judge:80'"):
        Service("judge:80")


# ---- TRL ----


def test_trl_asks_for_rewards(local, tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is not installed: docs/rewards.md")
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from sandbox.rewards.trl import reward_function

    words = {w: n for n, w in enumerate(["<pad>", "<eos>", "<unk>", "write", "a", "kernel", "def", "return", "x"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    task = json.dumps(known_task("relu").to_dict())
    data = Dataset.from_list([{"prompt": "write a kernel", "task": task}] * 4)

    def trainer(source):
        arguments = trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=4,
            max_steps=1,
            use_cpu=True,
            report_to=[],
            bf16=False,
        )
        return trl.GRPOTrainer(
            model=model, reward_funcs=reward_function(source, robust), args=arguments, train_dataset=data, processing_class=tokenizer
        )

    real = trainer(local)
    rows = [{"prompt": "write a kernel", "task": task}] * 3
    found = real._calculate_rewards(rows, [r["prompt"] for r in rows], list(REPLIES), [[1]] * 3)
    assert found.shape == (3, 1) and found[0] >= 1.0 and found[1:].flatten().tolist() == [-1.0, -1.0]
    # A whole step: what this model writes is no kernel, and every judgement says so
    real.train()
    logged = [entry for entry in real.state.log_history if "reward" in entry]
    assert logged[0]["reward"] == -1.0
    # A failure of ours is None to TRL: no number, and the others' baseline does not know of it
    lost = trainer(Failing())._calculate_rewards(rows, [r["prompt"] for r in rows], ["x"] * 3, [[1]] * 3)
    assert torch.isnan(lost).flatten().tolist() == [False, True, False] and lost[0] == -1.0


def test_trl_is_told_what_the_data_set_lacks():
    from sandbox.rewards.trl import reward_function

    with pytest.raises(ValueError, match="got columns prompts, wanted 'task'"):
        reward_function(Failing(), robust)(completions=["x"], prompts=["y"])


# ---- verl ----


@pytest.fixture
def verl_source(monkeypatch, local):
    from sandbox.rewards import verl

    sources = {"real": local, "failing": Failing()}
    monkeypatch.setattr(verl, "_source", lambda service, **options: sources[service])
    return verl


def test_verl_asks_for_rewards(verl_source):
    pytest.importorskip("verl", reason="verl is not installed: docs/rewards.md")
    import numpy
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    class Tokenizer:
        def decode(self, ids, skip_special_tokens=True):
            return REPLIES[int(ids[0])]

    def manager(service: str):
        chosen = {
            "path": "pkg://sandbox.rewards.verl",
            "name": "compute_score",
            "reward_kwargs": {"reward": "policy.reward:robust", "service": service},
        }
        config = {"reward": {"custom_reward_function": chosen, "reward_manager": {"source": "register", "name": "naive"}}}
        return load_reward_manager(OmegaConf.create(config), Tokenizer())

    task = json.dumps(known_task("relu").to_dict())
    rows = DataProto.from_dict(
        tensors={"responses": torch.arange(3).reshape(3, 1), "attention_mask": torch.ones(3, 2, dtype=torch.long)},
        non_tensors={
            "data_source": numpy.array(["kernels"] * 3, dtype=object),
            "reward_model": numpy.array([{"ground_truth": task}] * 3, dtype=object),
        },
    )

    async def scores(service: str, **how):
        asked = manager(service)
        return await asyncio.gather(*(asked.run_single(rows[n : n + 1]) for n in range(3)), **how)

    found = asyncio.run(scores("real"))
    assert found[0]["reward_score"] >= 1.0 and [f["reward_score"] for f in found[1:]] == [-1.0, -1.0]
    assert [f["reward_extra_info"]["acc"] for f in found] == [1.0, 0.0, 0.0]
    assert [type(f) for f in asyncio.run(scores("failing", return_exceptions=True))] == [SandboxError] * 3


def test_verl_gets_no_reward_for_a_task_that_cannot_be_judged(verl_source):
    ask = functools.partial(verl_source.compute_score, "kernels", reply(), reward="policy.reward:robust")
    with pytest.raises(ValueError, match="of kernels: got task_invalid"):
        asyncio.run(ask("def get_inputs(): return []", service="real"))
    with pytest.raises(SandboxError, match="lost"):
        asyncio.run(ask("x = 1", service="failing", reward_router_address="verl's own"))


# ---- verifiers ----


def test_verifiers_asks_for_rewards(local, tmp_path, monkeypatch):
    vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed: docs/rewards.md")
    from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

    from sandbox.rewards import verifiers

    sources = {"real": local, "failing": Failing()}
    monkeypatch.setattr(verifiers, "_source", lambda service, **options: sources[service])
    (tmp_path / "kernels.py").write_text('from sandbox.rewards.verifiers import KernelTaskset\n__all__ = ["KernelTaskset"]\n')
    (tmp_path / "tasks.jsonl").write_text(json.dumps(known_task("relu").to_dict()) + "\n" + json.dumps({"source": "x = 1"}) + "\n")
    monkeypatch.syspath_prepend(tmp_path)

    def scored(text: str, service: str, *, task: int = 0, reward: str = "policy.reward:robust"):
        config = taskset_config_type("kernels")(id="kernels", tasks=tmp_path / "tasks.jsonl", task={"reward": reward, "service": service})
        chosen = list(load_taskset(config))[task]
        trace = vf.Trace(
            task=vf.TraceTask(type="KernelTask", data=chosen.data, key=chosen.key, hash=chosen.hash),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
        )
        trace.root_reply = text
        try:
            asyncio.run(chosen.score(trace))
        except vf.RolloutError as error:
            trace.record_error(error)
        return trace

    found = [scored(text, "real") for text in REPLIES]
    assert found[0].reward >= 1.0 and [t.reward for t in found[1:]] == [-1.0, -1.0] and not any(t.errors for t in found)
    assert [t.info["verdict"]["status"] for t in found] == STATUSES
    assert "class Model" in found[0].task.data.prompt
    # What we failed at, and a task that cannot be judged, are errors and no rewards
    lost, invalid, unset = scored("x", "failing"), scored(reply(), "real", task=1), scored("x", "real", reward="")
    assert [t.rewards for t in (lost, invalid, unset)] == [{"verdict": None}] * 3
    assert (lost.stop_condition, invalid.stop_condition, unset.stop_condition) == ("sandbox_error", "task_error", "task_error")
    assert "task_invalid" in invalid.last_error.message and "wanted --env.taskset.task.reward" in unset.last_error.message
