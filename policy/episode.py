"""One episode: a player and a workspace take turns until the work is submitted or the room is used up.

The ids of an episode only grow: opening, then action and observation turn by turn, exactly as sampled and as shown. What the player
breaks is its own verdict; what we break (SandboxError) ends the episode without a reward.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from data.records import Candidate, SandboxError, Status, Task, ToolCall, ToolResult, Trajectory, Turn, Verdict, Workspace, content_id
from data.tools import TABLE
from policy.prompt import MALFORMED, ParseError, Prompt, Segment
from policy.sampler import Completion

LEAST_ROOM = 8
"""Tokens: with less room than this for an action, the episode ends with `context`."""


async def play(
    task: Task,
    generate: Callable[..., Awaitable[Completion]],
    workspace: Workspace,
    *,
    prompt: Prompt,
    checkpoint: str,
    stage: str,
    round: int,
    sample: int,
    seed: int,
    max_turns: int,
    max_new_tokens: int,
    context: int,
    reward: Callable[[Verdict], float | None],
) -> Trajectory:
    """Play one episode of `task` and judge afresh what it leaves behind.

    generate(segments, max_new_tokens=..., seed=...) answers with a Completion; a Completion may carry `trainable=False`.
    context: most tokens of the whole episode, last observation included: nothing is ever dropped or shortened to make room, so that
    whoever trains on the ids sees what the sampler saw. An observation beyond it is left out and ends the episode. Stops: done (submit), max_turns, context, infra_error (then reward is None).
    A `rejected` that the same files got during the episode stands. Raises what generate raises, SandboxError aside.
    """
    segments = prompt.opening(task)
    turns: list[Turn] = []
    stop, error = "max_turns", None
    try:
        for index in range(max_turns):
            room = min(max_new_tokens, context - _length(segments))
            if room < LEAST_ROOM:
                stop = "context"
                break
            turn, ended = await _turn(task, generate, workspace, prompt, segments, index, room, context, seed, last=index == max_turns - 1)
            turns.append(turn)
            if ended:
                stop = ended
                break
    except SandboxError as failure:
        stop, error = "infra_error", str(failure) or type(failure).__name__
    verdict = candidate = value = None
    if stop != "infra_error":
        try:
            candidate = workspace.candidate()
            verdict = _standing(candidate, turns) or await workspace.judge()
            value = reward(verdict)
        except SandboxError as failure:
            stop, error, verdict, value = "infra_error", str(failure) or type(failure).__name__, None, None
    return Trajectory(
        task=task.id,
        checkpoint=checkpoint,
        stage=stage,
        round=round,
        sample=sample,
        turns=tuple(turns),
        stop=stop,
        verdict=verdict,
        candidate=candidate,
        reward=value,
        error=error,
    )


async def _turn(
    task: Task,
    generate: Callable[..., Awaitable[Completion]],
    workspace: Workspace,
    prompt: Prompt,
    segments: list[Segment],
    index: int,
    room: int,
    context: int,
    seed: int,
    *,
    last: bool,
) -> tuple[Turn, str | None]:
    """One action and what answers it; appends both to `segments`. Then "done" (submitted), "context" (the answer has no room) or None."""
    opening = tuple(i for s in segments for i in s.ids or ()) if index == 0 else ()
    started = time.monotonic()
    completion = await generate(list(segments), max_new_tokens=room, seed=int(content_id(seed, index), 16) & 0x7FFFFFFF)
    seconds = {"generate": time.monotonic() - started}
    ids = completion.ids if completion.ids is not None else prompt.encode_action(completion.text)
    segments.append(Segment(role="assistant", text=completion.text, ids=ids))
    started = time.monotonic()
    calls, results = await _run(prompt.parse(completion.text), workspace, last=last)
    seconds["tools"] = time.monotonic() - started
    done = bool(results) and results[-1].done
    observation, full = None, False
    if not (done or last):
        text = "\n".join(result.text for result in results)
        observation = prompt.observe(text, closed=not ids or ids[-1] == prompt.end_id)
        if _length(segments) + len(observation.ids or ()) > context:  # no player ever reads it: training must not either
            full, observation = True, None
        else:
            segments.append(observation)
    given = [result.verdict for result in reversed(results) if result.verdict]
    # A rejection stands for the turn: later files of the same turn must not hide it
    verdict = next((v for v in given if v.status is Status.REJECTED), given[0] if given else None)
    turn = Turn(
        index=index,
        prompt_ids=opening,
        action_ids=ids or (),
        action_logprobs=completion.logprobs,
        observation_ids=(observation.ids if observation else None) or (),
        text=completion.text,
        observation=observation.text if observation else "",
        tool_calls=tuple(calls),
        candidate=workspace.candidate() if any(call.tool != MALFORMED for call in calls) else None,
        verdict=verdict,
        policy_version=completion.policy_version,
        finish_reason=completion.finish_reason,
        seconds=seconds,
        trainable=getattr(completion, "trainable", True),
    )
    return turn, "done" if done else "context" if full else None


async def _run(parsed: list[ToolCall] | ParseError, workspace: Workspace, *, last: bool) -> tuple[list[ToolCall], list[ToolResult]]:
    """Run the calls of a turn in order, up to a submit. A reply that cannot be read is one `malformed` call and its explanation."""
    if isinstance(parsed, ParseError):
        return [ToolCall(tool=MALFORMED, args={"error": parsed.line})], [ToolResult(text=parsed.line)]
    results: list[ToolResult] = []
    for call in parsed:
        if last and TABLE[call.tool].informs:  # nobody reads what it says
            continue
        results.append(await workspace.run(call.tool, call.args))
        if results[-1].done:
            break
    return parsed, results


def _standing(candidate: Candidate | None, turns: Sequence[Turn]) -> Verdict | None:
    """The rejection that the very same files met during the episode: a second judgement cannot wash it off."""
    for turn in turns:
        verdict = turn.verdict
        if candidate is not None and verdict is not None and verdict.status is Status.REJECTED and verdict.candidate == candidate.id:
            return verdict
    return None


def _length(segments: Sequence[Segment]) -> int:
    """Tokens so far; 0 for players without ids."""
    return sum(len(segment.ids or ()) for segment in segments)
