"""Trajectories -> rows (one an episode) -> micro-batches that hold action tokens only.

Legend: L tokens of a row, A its action tokens, T tokens of a micro-batch, S its rows, M its action tokens. Hidden states are
gathered at `src` before the LM head, so prompt and observation tokens never meet a loss or the vocabulary, and advantages are
computed on action tokens alone: what stands between two turns cannot move them.

Rows are packed into one [1, T] row, T bounded by a token budget, and attention is told their lengths (`policy.attention`):
the linear layers, most of the work of a small model, see one large matrix and no padding, and no mask of T x T is built.
transformers' own packing on sdpa is right only while `attention_mask is None` and `use_cache=False`; it is not used.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from data.records import Trajectory

OTHER, PLAN, CODE = 0, 1, 2
"""What an action token belongs to: the markup of a call, the prose outside of calls, the source that a call or a fenced block carries."""
MICRO = ("old_logp", "rollout_logp", "ref_logp", "v_old", "adv", "ret", "positive")
"""The float32 fields of action tokens that the losses read."""


@dataclasses.dataclass(kw_only=True, eq=False)
class Row:
    """One episode as arrays. Fields of length A belong to its trainable action tokens, in order."""

    id: str
    task: str
    checkpoint: str
    """Of the policy that played; episodes of different ones share no baseline."""
    ids: np.ndarray
    """int64 [L] the whole episode's tokens."""
    src: np.ndarray
    """int64 [A] position of the hidden state that predicts the token: its own position - 1."""
    turn: np.ndarray
    """int64 [A]."""
    reward: float
    """Falls on the last action token of the episode; NaN where there is none (imitation)."""
    stop: str
    rollout_logp: np.ndarray
    """float32 [A]; NaN from players that give none."""
    kind: np.ndarray = None
    """int8 [A] of OTHER, PLAN, CODE; see `mark`."""
    old_logp: np.ndarray = None
    ref_logp: np.ndarray = None
    v_old: np.ndarray = None
    adv: np.ndarray = None
    ret: np.ndarray = None
    mc: np.ndarray = None
    """float64 [A] Monte-Carlo return."""
    positive: np.ndarray = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def actions(self) -> int:
        return len(self.src)

    @property
    def label(self) -> np.ndarray:
        """int64 [A] the action tokens."""
        return self.ids[self.src + 1]


def row(trajectory: Trajectory) -> Row:
    """One Row. Turns with trainable=False stay in the context and give no action tokens.

    Raises ValueError for an episode without a first prompt token: nothing would predict its first action token.
    """
    ids: list[int] = []
    src, turns, logps = [], [], []
    for turn in trajectory.turns:
        ids.extend(turn.prompt_ids)
        if turn.trainable and turn.action_ids:
            if not ids:
                raise ValueError(f"trajectory {trajectory.id}: got an action without a prompt before it, wanted prompt_ids")
            count = len(turn.action_ids)
            src.append(np.arange(len(ids) - 1, len(ids) - 1 + count))
            turns.append(np.full(count, turn.index))
            logps.append(
                np.full(count, np.nan, np.float32) if turn.action_logprobs is None else np.asarray(turn.action_logprobs, np.float32)
            )
        ids.extend(turn.action_ids)
        ids.extend(turn.observation_ids)
    if src:
        del ids[int(src[-1][-1]) + 2 :]  # what follows the last action that is learned predicts nothing
    cat = lambda parts, kind: np.concatenate(parts).astype(kind) if parts else np.empty(0, kind)
    return Row(
        id=trajectory.id,
        task=trajectory.task,
        checkpoint=trajectory.checkpoint,
        ids=np.asarray(ids, np.int64),
        src=cat(src, np.int64),
        turn=cat(turns, np.int64),
        reward=np.nan if trajectory.reward is None else float(trajectory.reward),
        stop=trajectory.stop,
        rollout_logp=cat(logps, np.float32),
    )


_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
_SOURCE = (
    re.compile(r"<parameter=content>\n?(.*?)(?:</parameter>|\Z)", re.DOTALL),
    re.compile(r"\"content\"\s*:\s*\"((?:[^\"\\]|\\.)*)", re.DOTALL),
)
_FENCED = re.compile(r"^[ ]{0,3}```[^\n]*\n(.*?)(?:^[ ]{0,3}```|\Z)", re.DOTALL | re.MULTILINE)


def kinds(text: str) -> np.ndarray:
    """int8 [len(text)] of OTHER, PLAN, CODE: one reply's characters. A call or block that was cut off goes to the end of the text."""
    out = np.full(len(text), PLAN, np.int8)
    for call in _CALL.finditer(text):
        out[slice(*call.span())] = OTHER
        for pattern in _SOURCE:
            for source in pattern.finditer(text, *call.span()):
                out[slice(*source.span(1))] = CODE
    if "<tool_call>" not in text:
        for block in _FENCED.finditer(text):
            out[slice(*block.span())] = OTHER
            out[slice(*block.span(1))] = CODE
    return out


def mark(kept: Sequence[Row], tokenizer) -> None:
    """Set `kind` of every row: that of the first character of each token; special tokens, such as the end of a turn, are OTHER.

    Each token is decoded by itself, so what stands between two tokens never depends on their neighbours.
    """
    vocabulary = np.unique(np.concatenate([r.label for r in kept]))
    special = set(tokenizer.all_special_ids)
    pieces = dict(zip(vocabulary.tolist(), tokenizer.batch_decode([[i] for i in vocabulary.tolist()]), strict=True))
    for r in kept:
        r.kind = np.zeros(r.actions, np.int8)
        for turn in np.unique(r.turn):
            ids = r.label[r.turn == turn].tolist()
            texts = ["" if i in special else pieces[i] for i in ids]
            starts = np.cumsum([0, *map(len, texts)])[:-1]
            # One character more: a token without text at the end has a place too
            found = np.append(kinds("".join(texts)), np.int8(OTHER))[starts]
            r.kind[r.turn == turn] = np.where([bool(t) for t in texts], found, OTHER)


def milestones(r: Row) -> dict[str, np.ndarray]:
    """Where the critic's opinion is asked for, bool [A] each: `prompt`, `plan`, `code` = the state before the token is the end of it.

    prompt: the first action token. plan: the first code token of a turn. code: the token behind a turn's last code token, in that turn.
    """
    code = r.kind == CODE
    out = {name: np.zeros(r.actions, bool) for name in ("prompt", "plan", "code")}
    out["prompt"][0] = True
    for turn in np.unique(r.turn):
        where = np.flatnonzero(code & (r.turn == turn))
        if len(where):
            out["plan"][where[0]] = True
            if where[-1] + 1 < r.actions and r.turn[where[-1] + 1] == turn:
                out["code"][where[-1] + 1] = True
    return out


def rows(trajectories: Iterable[Trajectory], *, rewarded: bool, sampled: bool) -> list[Row]:
    """Rows of the trajectories that can be trained on, in their order.

    Left out: rows without action tokens, and with `rewarded` those whose reward is None (our failure, or the task's).
    `sampled`: every action token must carry its rollout log-probability; ValueError for a player that gives none.
    """
    kept = []
    for trajectory in trajectories:
        if rewarded and trajectory.reward is None:
            continue
        made = row(trajectory)
        if not made.actions:
            continue
        if sampled and np.isnan(made.rollout_logp).any():
            raise ValueError(
                f"trajectory {trajectory.id}: got action tokens without log-probabilities, wanted them all (sampled by a policy)"
            )
        kept.append(made)
    return kept


def fit_length(kept: Sequence[Row], longest: int) -> list[Row]:
    """The rows of at most `longest` tokens; longer ones do not fit the model's positions."""
    return [r for r in kept if len(r) <= longest]


@dataclasses.dataclass(kw_only=True, eq=False)
class Batch:
    """One micro-batch on a device."""

    ids: torch.Tensor
    """int64 [1, T]."""
    positions: torch.Tensor
    """int64 [1, T], from 0 in every row."""
    spans: tuple[int, ...]
    """[S] lengths of the rows; they add up to T."""
    src: torch.Tensor
    """int64 [M] into T."""
    label: torch.Tensor
    """int64 [M]."""
    seq: torch.Tensor
    """int64 [M] which of the S rows."""
    turn: torch.Tensor
    """int64 [M]."""
    weight: torch.Tensor
    """float32 [M]; 0 in a micro-batch that only keeps ranks in step."""
    fields: dict[str, torch.Tensor]
    """float32 [M] each: those of MICRO that the rows have."""


def collate(chosen: Sequence[Row], *, device="cpu", weight: float = 1.0) -> Batch:
    """Pack rows into one micro-batch."""
    starts = np.cumsum([0, *(len(r) for r in chosen)])
    cat = lambda arrays: torch.from_numpy(np.concatenate(list(arrays))).to(device)
    src = cat(r.src + start for r, start in zip(chosen, starts, strict=False))
    return Batch(
        ids=cat(r.ids for r in chosen)[None],
        positions=cat(np.arange(len(r)) for r in chosen)[None],
        spans=tuple(len(r) for r in chosen),
        src=src,
        label=cat(r.label for r in chosen),
        seq=cat(np.full(r.actions, i) for i, r in enumerate(chosen)),
        turn=cat(r.turn for r in chosen),
        weight=torch.full((len(src),), weight, device=device),
        fields={
            name: cat(getattr(r, name).astype(np.float32) for r in chosen)
            for name in MICRO
            if all(getattr(r, name) is not None for r in chosen)
        },
    )


def pack(chosen: Sequence[Row], tokens: int) -> list[list[Row]]:
    """Micro-batches of at most `tokens` tokens (a longer row stands alone): first fit, longest first, so few and full."""
    bins: list[tuple[int, list[Row]]] = []
    for r in sorted(chosen, key=lambda r: (-len(r), r.id)):
        place = next((i for i, (used, _) in enumerate(bins) if used + len(r) <= tokens), None)
        if place is None:
            bins.append((len(r), [r]))
        else:
            bins[place] = (bins[place][0] + len(r), [*bins[place][1], r])
    return [members for _, members in bins]


def share(chosen: Sequence[Row], world: int, *, linear: float = 1.0, square: float = 1 / 4096) -> list[list[Row]]:
    """Rows for each rank, balanced by the cost linear * L + square * L^2 (attention counts, not tokens alone): greedy, largest first."""
    shares: list[list[Row]] = [[] for _ in range(world)]
    load = [0.0] * world
    for r in sorted(chosen, key=lambda r: (-len(r), r.id)):
        rank = load.index(min(load))
        shares[rank].append(r)
        load[rank] += linear * len(r) + square * len(r) ** 2
    return shares


def micro_batches(chosen: Sequence[Row], *, tokens: int, rank: int = 0, world: int = 1, device="cpu"):
    """This rank's micro-batches of one optimizer step, as (Batch, rows). Every rank yields the same number.

    A rank with fewer adds copies of a row with weight 0, so that collectives stay in step.
    """
    packed = [pack(part, tokens) for part in share(chosen, world)]
    for i in range(max(map(len, packed))):
        real = i < len(packed[rank])
        members = packed[rank][i] if real else [min(chosen, key=lambda r: (len(r), r.id))]
        yield collate(members, device=device, weight=1.0 if real else 0.0), members if real else []
