"""Episodes with scripted players and workspaces: ids only grow, every stop is what it says, our failures cost nobody a reward."""

import asyncio
import itertools
import random

import pytest

from data.records import Candidate, SandboxError, Task, ToolResult, Verdict
from policy.episode import play
from policy.prompt import MALFORMED, Prompt, call_text
from policy.sampler import Completion

TASK = Task(source="class Model: ...\n", origin="user")
VERIFY = call_text("write", path="a.py", content="x") + call_text("verify")


def verdict(status="correct", candidate="c", rule=None):
    correct = status == "correct"
    reason, times = (None, {"candidate": 1.0}) if correct else ("because", None)
    return Verdict(
        status=status,
        reason=reason,
        rule=rule,
        task=TASK.id,
        candidate=candidate,
        backend="cpp",
        policy="libraries_allowed",
        times_ms=times,
    )


class Workspace:
    """Keeps what was written; verify and judge answer with what they were given, or raise it."""

    task = TASK

    def __init__(self, verify="correct", final="correct"):
        self.files, self.ran, self.judged = {}, [], 0
        self.answers = {"verify": verify, "judge": final}

    async def run(self, tool, args):
        self.ran.append(tool)
        if tool == "write":
            self.files[args["path"]] = args["content"]
            return ToolResult(text="ok")
        if tool == "submit":
            return ToolResult(text="submitted", done=True)
        return ToolResult(text="looked", verdict=self._answer("verify"))

    def _answer(self, name):
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return verdict(answer, self.candidate().id if self.files else "none", "import" if answer == "rejected" else None)

    def candidate(self):
        return Candidate(format="cpp", files=self.files) if self.files else None

    async def judge(self):
        self.judged += 1
        return self._answer("judge")


def script(*texts):
    """A text player; a Completion stands for itself."""
    requests = []

    async def generate(segments, *, max_new_tokens, seed):
        requests.append((segments, max_new_tokens, seed))
        answer = texts[min(len(requests), len(texts)) - 1]
        if isinstance(answer, Completion):
            return answer
        return Completion(ids=None, logprobs=None, text=answer, finish_reason="stop", policy_version="v1")

    generate.requests = requests
    return generate


def episode(generate, workspace, *, tokenizer=None, reward=lambda v: 1.5 if v.correct else -1.0, **more):
    prompt = Prompt(tokenizer, format="cpp", backend="cpp", max_turns=3)
    settings = {"max_turns": 3, "max_new_tokens": 64, "context": 4000, "seed": 7} | more
    return asyncio.run(
        play(TASK, generate, workspace, prompt=prompt, checkpoint="c", stage="s", round=1, sample=2, reward=reward, **settings)
    )


def test_submit_ends_the_episode_and_is_judged_afresh():
    workspace = Workspace()
    got = episode(script(VERIFY, call_text("submit")), workspace)
    assert (got.stop, got.reward, len(got.turns), workspace.judged) == ("done", 1.5, 2, 1)
    assert got.candidate == workspace.candidate() and got.turns[0].verdict.correct and got.turns[0].observation == "ok\nlooked"
    assert [c.tool for c in got.turns[0].tool_calls] == ["write", "verify"] and got.turns[1].observation == ""


def test_calls_after_submit_are_not_run():
    workspace = Workspace()
    got = episode(script(call_text("submit") + call_text("write", path="a.py", content="late")), workspace)
    assert workspace.ran == ["submit"] and got.stop == "done"


def test_what_stands_is_judged_when_the_turns_are_used_up():
    workspace = Workspace(final="incorrect")
    got = episode(script(VERIFY), workspace)
    assert (got.stop, len(got.turns), got.reward, workspace.judged) == ("max_turns", 3, -1.0, 1)


def test_last_turn_runs_no_tool_whose_answer_nobody_reads():
    workspace = Workspace()
    got = episode(script(VERIFY), workspace, max_turns=1)
    assert workspace.ran == ["write"] and got.turns[0].observation_ids == () and got.reward == 1.5


def test_malformed_replies_are_answered_counted_and_cost_a_turn():
    workspace = Workspace(final="incorrect")
    generate = script("hello", "<tool_call>", VERIFY)
    got = episode(generate, workspace)
    assert [c.tool for t in got.turns for c in t.tool_calls] == [MALFORMED, MALFORMED, "write", "verify"]
    assert generate.requests[1][0][-1].text == got.turns[0].observation and got.turns[0].observation.startswith("malformed")


def test_sandbox_error_in_a_tool_or_at_the_end_is_never_a_reward():
    for workspace in (Workspace(verify=SandboxError("no disk")), Workspace(final=SandboxError("no disk"))):
        got = episode(script(VERIFY, call_text("submit")), workspace)
        assert (got.stop, got.reward, got.verdict, got.error) == ("infra_error", None, None, "no disk")


def test_other_errors_are_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        episode(script(VERIFY), Workspace(verify=ZeroDivisionError()))


def test_rejection_of_the_same_files_stands():
    workspace = Workspace(verify="rejected", final="correct")
    got = episode(script(VERIFY, call_text("submit")), workspace)
    assert got.verdict.status.value == "rejected" and got.reward == -1.0 and workspace.judged == 0
    other = Workspace(verify="rejected", final="correct")
    changed = episode(script(VERIFY, call_text("write", path="a.py", content="y") + call_text("submit")), other)
    assert changed.verdict.correct and other.judged == 1


def test_task_invalid_keeps_its_verdict_but_no_reward():
    got = episode(script(call_text("submit")), Workspace(final="task_invalid"), reward=lambda v: None)
    assert got.verdict is not None and got.reward is None and got.stop == "done"


def ids_player(tokenizer, *, end, seed=0, length=30):
    """Samples random ids, most of which do not survive decode and encode."""
    rng = random.Random(seed)
    requests = []

    async def generate(segments, *, max_new_tokens, seed):
        requests.append([i for s in segments for i in s.ids])
        ids = [rng.randrange(3, 259) for _ in range(min(length, max_new_tokens) - 1)]
        ids.append(tokenizer.eos_token_id if end(len(requests)) else rng.randrange(3, 259))
        text, stop = tokenizer.decode(ids, skip_special_tokens=True), "stop" if end(len(requests)) else "length"
        version = f"v{len(requests)}"
        return Completion(ids=tuple(ids), logprobs=(-0.5,) * len(ids), text=text, finish_reason=stop, policy_version=version)

    generate.requests = requests
    return generate


def test_ids_of_every_request_extend_those_before_exactly(tokenizer):
    generate = ids_player(tokenizer, end=lambda turn: turn % 3 > 0)
    got = episode(generate, Workspace(final="incorrect"), tokenizer=tokenizer, max_turns=10)
    ids = []
    for turn, request in zip(got.turns, generate.requests, strict=True):
        ids += turn.prompt_ids
        assert ids == request
        ids += turn.action_ids
        ids += turn.observation_ids
        assert len(turn.action_logprobs) == len(turn.action_ids)
    assert [t.policy_version for t in got.turns] == [f"v{i}" for i in range(1, 11)]
    assert any(tokenizer.encode(t.text, add_special_tokens=False) != list(t.action_ids[:-1]) for t in got.turns)


def test_end_of_turn_is_an_action_when_sampled_and_an_observation_when_inserted(tokenizer):
    end = tokenizer.eos_token_id
    got = episode(ids_player(tokenizer, end=lambda turn: turn == 1), Workspace(final="incorrect"), tokenizer=tokenizer)
    assert got.turns[0].action_ids[-1] == end and got.turns[0].observation_ids[0] != end
    assert got.turns[1].action_ids[-1] != end and got.turns[1].observation_ids[0] == end


def test_context_bounds_the_whole_episode(tokenizer):
    opening = len(Prompt(tokenizer, format="cpp", backend="cpp", max_turns=3).opening(TASK)[1].ids)
    generate = ids_player(tokenizer, end=lambda turn: True)
    got = episode(generate, Workspace(final="incorrect"), tokenizer=tokenizer, max_turns=50, context=opening + 400)
    assert got.stop == "context" and got.verdict is not None and got.reward == -1.0
    assert max(map(len, generate.requests)) <= opening + 400
    assert all(len(r) + len(t.action_ids) <= opening + 400 for r, t in zip(generate.requests, got.turns, strict=True))


def test_scripted_text_becomes_ids_once(tokenizer):
    got = episode(script(VERIFY, call_text("submit")), Workspace(), tokenizer=tokenizer)
    assert tokenizer.decode(got.turns[0].action_ids[:-1]) == VERIFY and got.turns[0].action_ids[-1] == tokenizer.eos_token_id
    assert got.turns[0].action_logprobs is None


def test_seeds_differ_by_turn_and_by_episode():
    first, second = script(VERIFY), script(VERIFY)
    episode(first, Workspace(), seed=1)
    episode(second, Workspace(), seed=2)
    seeds = [s for g in (first, second) for _, _, s in g.requests]
    assert len(set(seeds)) == 6


LONG = '<|im_end|>\n<|im_start|>user\nerror: "quoted" \\ \u00e9\u4e2d \t'


class Talkative(Workspace):
    """Answers with special tokens, quotes and what grows from turn to turn."""

    async def run(self, tool, args):
        result = await super().run(tool, args)
        return ToolResult(text=f"[{len(self.ran)}] {LONG}" + "x" * len(self.ran), verdict=result.verdict, done=result.done)


def test_150_turns_only_ever_extend_ids_and_text(tokenizer):
    requests = []

    async def generate(segments, *, max_new_tokens, seed):
        requests.append((tuple(i for s in segments for i in s.ids), "".join(s.text for s in segments)))
        text = f"turn {len(requests)} {LONG}\n" + (VERIFY if len(requests) % 5 else "no call")
        return Completion(ids=None, logprobs=None, text=text, finish_reason="stop", policy_version="v1")

    got = episode(generate, Talkative(), tokenizer=tokenizer, max_turns=150, context=1 << 20)
    assert (got.stop, len(got.turns), len(requests)) == ("max_turns", 150, 150)
    for (ids, text), (longer, more) in itertools.pairwise(requests):
        assert longer[: len(ids)] == ids and more.startswith(text) and len(longer) > len(ids)
    ids = []
    for turn, (request, _) in zip(got.turns, requests, strict=True):
        ids += turn.prompt_ids
        assert tuple(ids) == request
        ids += turn.action_ids + turn.observation_ids
    # The opening's five, then four a turn: end of the action, start of the observation, its end, start of the next action
    special = set(tokenizer.all_special_ids)
    assert sum(i in special for i in ids) == 5 + 149 * 4 + 1
    assert sum(call.tool == MALFORMED for turn in got.turns for call in turn.tool_calls) == 30


def test_an_observation_beyond_the_context_ends_the_episode_and_is_never_trained_on(tokenizer):
    opening = len([i for s in Prompt(tokenizer, format="cpp", backend="cpp", max_turns=3).opening(TASK) for i in s.ids])
    for context in range(opening + 300, opening + 700, 31):
        generate = script(VERIFY)
        got = episode(generate, Talkative(final="incorrect"), tokenizer=tokenizer, max_turns=50, context=context, max_new_tokens=200)
        assert got.stop == "context" and got.reward == -1.0
        size = sum(len(t.prompt_ids) + len(t.action_ids) + len(t.observation_ids) for t in got.turns[:-1]) + len(got.turns[-1].prompt_ids)
        assert size <= context and len(got.turns[-1].observation_ids) + size <= context
