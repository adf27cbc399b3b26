"""`fit`: the one optimizer loop, for imitation (sft, rft), value pretraining (value) and reinforcement (ppo, trloo).

One call reads rewarded episodes and checkpoints and writes checkpoints; it never samples. Progress rests in a work folder after
every step that ends `save_after` seconds or more after the last save, so a killed fit goes on from there, bit for bit. No global random
state is used: the order of episodes depends on (seed, epoch) alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import shutil
import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from data.records import Checkpoint, Record, Trajectory, content_id
from policy import advantage, engine, lora, loss, measure, memory, model
from policy import batch as batching

METHODS = ("sft", "rft", "value", "ppo", "trloo")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Record):
    """What a fit may vary. Clip bounds and gamma are the paper's; its lambda of 0.95 a token is unit="token", lam_critic=0.95."""

    method: str
    seed: int
    epochs: float
    batch: int
    """Episodes an optimizer step, over all ranks."""
    lr: float
    """Of the policy; of the critic in method value."""
    critic_lr: float | None = None
    warmup: int = 0
    """Steps of linear warm-up."""
    decay: bool = False
    """Cosine to a tenth over the fit."""
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    tokens: int = 8192
    """Most tokens of a micro-batch; a longer episode stands alone."""
    checkpointing: bool = False
    """Keep a layer's input alone and compute the rest of its activations again in the backward pass: less memory, a third more time."""
    lora_rank: int | None = None
    """Train low-rank adapters of this rank alone (policy/lora.py); None = every weight."""
    temperature: float = 1.0
    """The sampler's."""
    zero_stage: int = 1
    dtype: str = "float32"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    value_clip: float | None = None
    gamma: float = 1.0
    lam: float = 0.95
    """Of the policy's advantages."""
    lam_critic: float = 1.0
    """Of the critic's targets. Below 1 they contain V itself: at 0.95 a token unit forgets the outcome within 90 tokens."""
    adaptive_alpha: float | None = None
    """Length-adaptive lambda of the policy (VAPO's alpha); None = `lam`."""
    unit: str = "turn"
    """What gamma and lambda count: token (the paper's) or turn."""
    whiten: bool = True
    kl: str | None = None
    """k1, k2 or k3 against the reference: the loss term; None = off."""
    kl_coef: float = 0.0
    positive_coef: float = 0.0
    """Of the language-model loss on the action tokens of positive episodes, their mean (VAPO, section 4.3)."""
    min_reward: float = 0.0
    """The least reward of a positive episode."""
    tis_cap: float | None = None
    """Truncated importance weights for what the sampler computed differently; needed for episodes of earlier policies."""
    mrs_band: tuple[float, float] | None = None
    """Episodes are rejected whose geometric mean of old over sampled probability leaves this band."""
    mrs_veto: float = 1e-4
    kl_stop: float | None = None
    """An epoch ends when approx_kl_k3 of a step exceeds this."""
    diverged_kl: float | None = None
    """The fit ends before a step whose approx_kl_k3 exceeds this."""
    diverged_entropy: float | None = None
    """The fit ends before a step whose entropy exceeds this many times that of the first."""
    plateau: float | None = None
    """Value pretraining ends when an epoch raises explained_var_mc by less than this."""
    save_after: float = 1.0
    """Seconds of steps that a kill may cost beside the step in flight; longer steps are each saved."""

    def __post_init__(self):
        wants = [
            ("method", self.method in METHODS, " or ".join(METHODS)),
            ("unit", self.unit in ("token", "turn"), "token or turn"),
            ("epochs", self.epochs > 0, "a positive number"),
            ("batch", self.batch >= 1, "at least 1"),
            ("lr", self.lr >= 0, "no negative number"),
            ("clip_low", 0 < self.clip_low < 1, "more than 0 and less than 1"),
            ("clip_high", self.clip_high > 0, "a positive number"),
            ("dual_clip", self.dual_clip is None or self.dual_clip > 1, "None or more than 1"),
            ("value_clip", self.value_clip is None or self.value_clip > 0, "None or a positive number"),
            ("kl_coef", self.kl_coef == 0 or (self.kl is not None and self.kl_coef > 0), "0, or a positive number together with kl"),
            ("positive_coef", self.positive_coef >= 0, "no negative number"),
            ("tis_cap", self.tis_cap is None or self.tis_cap >= 1, "None or at least 1"),
            ("mrs_band", self.mrs_band is None or self.mrs_band[0] <= 1 <= self.mrs_band[1], "None or bounds around 1"),
            ("diverged_entropy", self.diverged_entropy is None or self.diverged_entropy > 1, "None or more than 1"),
            ("critic_lr", self.method != "ppo" or self.critic_lr is not None, "a number for ppo"),
            ("gamma", 0 <= self.gamma <= 1, "0 to 1"),
            ("lam", 0 <= self.lam <= 1, "0 to 1"),
            ("lam_critic", 0 <= self.lam_critic <= 1, "0 to 1"),
            ("dtype", self.dtype in ("float32", "bfloat16"), "float32 or bfloat16"),
            ("zero_stage", self.zero_stage in (0, 1, 2, 3), "0, 1, 2 or 3"),
            (
                "lora_rank",
                self.lora_rank is None or (self.lora_rank >= 1 and self.zero_stage < 3),
                "None, or at least 1 with a zero_stage below 3",
            ),
            ("kl", self.kl in (None, "k1", "k2", "k3"), "k1, k2 or k3"),
            ("temperature", self.temperature > 0, "a positive number"),
        ]
        for name, good, wanted in wants:
            if not good:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, wanted {wanted}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    policy: Checkpoint | None
    critic: Checkpoint | None
    steps: int
    stopped: bool
    """`stop` said so: the work folder has everything, nothing was written to out."""
    metrics: dict[str, float]
    """Those of the last step."""
    credit: list[dict] = dataclasses.field(default_factory=list)
    """One row a turn that a rewarded fit learned from; see `_credit`."""
    ended: str | None = None
    """Why the fit ended before its last step: it diverged. The weights are those before the step that showed it."""


def _is_stale(trajectory: Trajectory, policy: str) -> bool:
    """Whether another policy than the one that an update starts from has sampled any of an episode's action tokens."""
    return any(turn.trainable and turn.policy_version not in (None, policy) for turn in trajectory.turns)


def fit(
    trajectories: Sequence[Trajectory],
    settings: Settings,
    *,
    policy=None,
    critic=None,
    out=None,
    critic_out=None,
    kind: str | None = None,
    round: int = 0,
    reference=None,
    work=None,
    log: Callable[[dict[str, float]], None] = lambda metrics: None,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda line: None,
    device: str = "auto",
) -> Fitted:
    """Train on `trajectories` and write checkpoints.

    policy: folder of the policy that starts (and, for ppo and trloo, that sampled); needed but for value, where it may give the
        critic its backbone instead of `critic`.
    critic: folder of a critic (ppo, value); without it the critic starts from `policy` with V = 0.
    out, critic_out: folders to write; kind: of the policy's checkpoint (default sft, rft or ppo by method).
    reference: folder for the KL term; default: the policy as it starts.
    work: folder for resuming; None = no resume. A folder of another fit is a ValueError.
    log: one dict of floats a step, with "step", "epoch" and "steps" (of the whole); a step that is repeated after a kill comes twice.
    stop: asked after every step; True saves and leaves.
    tell: gets the forecast of memory as a line, before any model is loaded.
    Raises ValueError for unusable arguments, when no episode is left or when the fit cannot fit into memory, FloatingPointError when a loss or gradient is not finite
    (the last saved step stays good).
    """
    world = engine.launch(device)
    rewarded = settings.method in ("value", "ppo", "trloo")
    rows = batching.rows(trajectories, rewarded=rewarded, sampled=settings.method in ("ppo", "trloo"))
    if rows and (line := _forecast(rows, settings, policy, critic, world)):
        tell(line)
    engines, tokenizer, parents, adapters = _engines(settings, policy, critic, world)
    longest = next(iter(engines.values())).module.config.max_position_embeddings
    rows = sorted(batching.fit_length(rows, longest), key=lambda r: r.id)
    if not rows:
        raise ValueError(
            f"trajectories: got {len(trajectories)}, none to train on, wanted some with action tokens{' and a reward' if rewarded else ''}"
        )
    if rewarded:
        batching.mark(rows, tokenizer)
    plan = _Plan(rows, settings)
    progress = _Progress(
        work,
        content_id(_results(settings), [[r.id, str(r.reward), zlib.crc32(r.ids.tobytes()), r.actions] for r in rows], parents),
        engines,
        world,
    )
    step = progress.resume()
    metrics = measure.data(rows, len(trajectories) - len(rows)) if step == 0 else {}
    if step == 0 and settings.method in ("ppo", "trloo"):
        metrics["episodes_stale"] = float(sum(_is_stale(t, parents["actor"]) for t in trajectories))
    prepared, finished, epoch_ev = None, progress.notes.get("finished", False), progress.notes.get("ev")
    while step < plan.steps and not finished:
        epoch, place = divmod(step, plan.per_epoch)
        if rewarded and prepared != plan.preparation(epoch):
            prepared = plan.preparation(epoch)
            if not progress.recall(rows, prepared):
                metrics |= _prepare(plan, prepared, engines, settings, world, reference)
                progress.keep(rows, prepared)
        started = time.perf_counter()
        chosen = plan.chosen(epoch, place)
        seen, diverged = _step(chosen, engines, settings, plan.rates(step, settings), world, progress.notes.get("entropy"))
        progress.notes.setdefault("entropy", seen.get("entropy"))
        seconds = time.perf_counter() - started
        metrics |= seen | {
            "step": float(step + 1),
            "steps": float(plan.steps),
            "epoch": epoch + (place + 1) / plan.per_epoch,
            "step_seconds": seconds,
            "tokens_per_second": sum(map(len, chosen)) / seconds,
        }
        if world.device.type == "cuda":
            metrics["peak_memory_gib"] = torch.cuda.max_memory_allocated(world.device) / 2**30
        last, metrics = metrics, {}
        if world.rank == 0:
            log(last)
        if diverged:
            finished, progress.notes["ended"] = True, f"{diverged} at step {step + 1} of {plan.steps}"
        else:
            step += 1
            if settings.kl_stop is not None and last.get("approx_kl_k3", 0.0) > settings.kl_stop:
                step = (epoch + 1) * plan.per_epoch  # the rest of this epoch is left out
        if settings.method == "value" and settings.plateau is not None and place + 1 == plan.per_epoch:
            finished |= epoch_ev is not None and last["explained_var_mc"] - epoch_ev < settings.plateau
            epoch_ev = last["explained_var_mc"]
        progress.notes |= {"metrics": last, "ev": epoch_ev, "finished": finished}
        leaving = any(world.gather(bool(stop())))
        if progress.due(settings.save_after) or leaving or finished or step >= plan.steps:
            progress.save(step)
        if leaving and step < plan.steps and not finished:
            _close(engines)
            return Fitted(policy=None, critic=None, steps=step, stopped=True, metrics=last)
    if rewarded and rows[0].mc is None:
        progress.recall(rows, plan.preparation((plan.steps - 1) // plan.per_epoch))  # a fit that had ended before a kill
    records = _export(
        engines,
        adapters,
        tokenizer,
        parents,
        world,
        out,
        critic_out,
        kind or {"sft": "sft", "rft": "rft"}.get(settings.method, "ppo"),
        round,
    )
    _close(engines)
    return Fitted(
        policy=records.get("actor"),
        critic=records.get("critic"),
        steps=step,
        stopped=False,
        metrics=progress.notes.get("metrics", {}),
        credit=_credit(rows) if rewarded else [],
        ended=progress.notes.get("ended"),
    )


def _results(settings: Settings) -> dict:
    """The settings that decide what comes out; the others may change between a stop and its resume (after running out of memory, say)."""
    return {name: value for name, value in settings.to_dict().items() if name not in ("tokens", "checkpointing", "save_after")}


def _forecast(rows, settings: Settings, policy, critic, world) -> str:
    models = {} if settings.method == "value" else {"actor": policy}
    if settings.method in ("value", "ppo"):
        models["critic"] = critic or policy
    if any(path is None or not (pathlib.Path(path) / "config.json").is_file() for path in models.values()):
        return ""  # what is wrong is said where they are loaded
    tokens = min(max(settings.tokens, max(map(len, rows))), sum(map(len, rows)))
    same = {name: getattr(settings, name) for name in ("zero_stage", "dtype", "checkpointing", "lora_rank")}
    needed = memory.forecast(models, tokens=tokens, actions=min(tokens, sum(r.actions for r in rows)), ranks=world.size, **same)
    return memory.check(needed, memory.available(world.device), world.device)


def _engines(settings: Settings, policy, critic, world):
    """({"actor": engine, "critic": engine} as the method needs, tokenizer, {name: parent id}, {name: handle of its adapters})."""
    if policy is None and (settings.method != "value" or critic is None):
        raise ValueError(f"policy: got None, wanted the folder of a policy for {settings.method}")
    dtype = getattr(torch, settings.dtype)
    options = {
        "zero_stage": settings.zero_stage,
        "bf16": settings.dtype == "bfloat16",
        "clip": settings.grad_clip,
        "weight_decay": settings.weight_decay,
    }
    engines, parents, adapters = {}, {}, {}

    def ready(net, name: str) -> None:
        if settings.lora_rank is not None:
            adapters[name] = lora.attach(net, settings.lora_rank, settings.seed)
        if settings.checkpointing:
            net.gradient_checkpointing_enable({"use_reentrant": False})

    tokenizer = model.load_tokenizer(policy or critic)
    if settings.method != "value":
        lm, tokenizer, record = model.load(policy, dtype=dtype, device=str(world.device))
        ready(lm, "actor")
        engines["actor"] = engine.initialize(model.Actor(lm), lr=settings.lr, **options)
        parents["actor"] = record.id
    if settings.method in ("value", "ppo"):
        start = critic or policy
        record = model.read_record(start)
        net = model.Critic.load(start, dtype=dtype) if record.kind == "critic" else model.Critic.from_policy(start, dtype=dtype)
        rate = settings.lr if settings.method == "value" else settings.critic_lr
        ready(net.backbone, "critic")
        engines["critic"] = engine.initialize(net.to(world.device), lr=rate, **options)
        parents["critic"] = record.id
    return engines, tokenizer, parents, adapters


class _Plan:
    """Which episodes make which step."""

    def __init__(self, rows, settings: Settings):
        self.rows, self.settings = rows, settings
        self.per_epoch = math.ceil(len(rows) / settings.batch)
        self.steps = max(1, round(settings.epochs * self.per_epoch))

    def chosen(self, epoch: int, place: int):
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self.rows))
        return [self.rows[i] for i in order[place * self.settings.batch : (place + 1) * self.settings.batch]]

    def preparation(self, epoch: int) -> int:
        """The epoch before which targets are computed: each for a critic that bootstraps on itself, else the first."""
        return epoch if self.settings.method == "value" and self.settings.lam_critic < 1 else 0

    def rates(self, step: int, settings: Settings) -> dict[str, float]:
        factor = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
        if settings.decay:
            factor *= 0.55 + 0.45 * math.cos(math.pi * step / self.steps)
        critic = settings.lr if settings.method == "value" else settings.critic_lr or 0.0
        return {"actor": settings.lr * factor, "critic": critic * factor}


class _Progress:
    """The work folder: step-N (engines, random states), targets-N.npz, state.json inside step-N; only the newest step is kept."""

    def __init__(self, work, fingerprint: str, engines, world):
        self.folder = pathlib.Path(work) if work is not None else None
        self.fingerprint, self.engines, self.world, self.notes = fingerprint, engines, world, {}
        self.saved = time.monotonic()
        if self.folder is not None and world.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            for partial in self.folder.glob("*.partial*"):
                shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
        world.wait()

    def steps(self) -> list[pathlib.Path]:
        return sorted(self.folder.glob("step-????????")) if self.folder is not None else []

    def resume(self) -> int:
        if not self.steps():
            return 0
        newest = self.steps()[-1]
        state = json.loads((newest / "state.json").read_text())
        if state["fingerprint"] != self.fingerprint:
            raise ValueError(
                f"work folder {str(self.folder)!r}: got the progress of another fit, wanted an empty folder or the same settings and data"
            )
        engine.load(self.engines, newest, self.world)
        self.notes = state["notes"]
        return state["step"]

    def due(self, after: float) -> bool:
        # One rank's clock decides for all
        return self.folder is not None and self.world.gather(time.monotonic() - self.saved >= after)[0]

    def save(self, step: int) -> None:
        if self.folder is None:
            return
        target = self.folder / f"step-{step:08d}"
        if target.exists():
            return
        partial = target.with_name(target.name + ".partial")
        partial.mkdir(exist_ok=True)
        if self.world.rank == 0:
            (partial / "state.json").write_text(json.dumps({"step": step, "fingerprint": self.fingerprint, "notes": self.notes}))
        engine.save(self.engines, target, self.world)
        if self.world.rank == 0:
            for old in self.steps()[:-1]:
                # a kill in the middle must not leave half a step under a good name
                gone = old.with_name(old.name + ".partial-old")
                old.rename(gone)
                shutil.rmtree(gone)
        self.saved = time.monotonic()

    def _targets(self, epoch: int) -> pathlib.Path:
        return self.folder / f"targets-{epoch:04d}.npz"

    def keep(self, rows, epoch: int) -> None:
        """Old log-probabilities, values and targets: after a kill they could not be computed again, the weights have moved."""
        if self.folder is None or self.world.rank:
            return
        names = [name for name in (*batching.MICRO, "mc") if getattr(rows[0], name, None) is not None]
        partial = self.folder / f"targets-{epoch:04d}.partial.npz"
        np.savez(partial, **{name: np.concatenate([getattr(r, name) for r in rows]) for name in names})
        partial.rename(self._targets(epoch))

    def recall(self, rows, epoch: int) -> bool:
        found = any(self.world.gather(self.folder is not None and self._targets(epoch).exists()))
        if found:
            with np.load(self._targets(epoch)) as stored:
                ends = np.cumsum([r.actions for r in rows])[:-1]
                for name in stored.files:
                    for r, part in zip(rows, np.split(stored[name], ends), strict=True):
                        setattr(r, name, part)
        return found


def _prepare(plan: _Plan, epoch: int, engines, settings: Settings, world, reference) -> dict[str, float]:
    """Old log-probabilities, old values, advantages and returns of every row, on every rank.

    The forward passes run over the very micro-batches of the coming epoch, so the first update's ratios are exactly 1.
    """
    groups = [plan.chosen(epoch, place) for place in range(plan.per_epoch)]
    rows = plan.rows
    if "actor" in engines:
        _score(
            groups,
            "old_logp",
            engines["actor"],
            lambda e, b: e(b.ids, b.positions, b.src, b.label, b.spans, settings.temperature),
            settings,
            world,
        )
        if settings.kl and reference is not None:
            other, _, _ = model.load(reference, dtype=getattr(torch, settings.dtype), device=str(world.device))
            _score(
                groups,
                "ref_logp",
                model.Actor(other),
                lambda e, b: e(b.ids, b.positions, b.src, b.label, b.spans, settings.temperature),
                settings,
                world,
            )
        elif settings.kl:
            for r in rows:
                r.ref_logp = r.old_logp
    if "critic" in engines:
        _score(groups, "v_old", engines["critic"], lambda e, b: e(b.ids, b.positions, b.src, b.spans), settings, world)
    for r in rows:
        reward = advantage.rewards(r.actions, r.reward)
        if settings.unit == "token":
            r.mc = advantage.returns_to_go(reward, gamma=settings.gamma)
        else:
            r.mc = advantage.turn_credit(reward, np.zeros(r.actions), r.turn, gamma=settings.gamma, lam=1.0, lam_critic=1.0)[1]
        if "critic" in engines:
            lam = settings.lam if settings.adaptive_alpha is None else advantage.adaptive_lambda(r.actions, settings.adaptive_alpha)
            given = {"gamma": settings.gamma, "lam": lam, "lam_critic": settings.lam_critic}
            if settings.unit == "turn":
                r.adv, r.ret = advantage.turn_credit(reward, r.v_old, r.turn, **given)
            else:
                r.adv, r.ret = advantage.token_credit(reward, r.v_old, **given)
    if settings.method == "trloo":
        _leave_one_out(rows)
    everything = np.concatenate([r.adv for r in rows])
    out = measure.spread("advantage", everything)
    if settings.whiten and settings.method == "ppo":
        ends = np.cumsum([r.actions for r in rows])[:-1]
        for r, part in zip(rows, np.split(advantage.whiten(everything), ends), strict=True):
            r.adv = part
    return out


def _credit(rows) -> list[dict]:
    """What each turn was held to be worth: Monte-Carlo return, values before its first token and before its first code token, mean advantage as the
    loss saw it, mean log-probabilities; None where the method has none."""
    out = []
    for r in rows:
        plan_end = batching.milestones(r)["plan"]
        for turn in np.unique(r.turn):
            at = np.flatnonzero(r.turn == turn)
            code = at[plan_end[at]]
            mean = lambda values, at=at: None if values is None or np.isnan(values[at]).any() else float(values[at].mean())
            out.append(
                {
                    "trajectory": r.id,
                    "turn": int(turn),
                    "task": r.task,
                    "checkpoint": r.checkpoint,
                    "n_action": len(at),
                    "n_plan": int((r.kind[at] == batching.PLAN).sum()),
                    "n_code": int((r.kind[at] == batching.CODE).sum()),
                    "return": float(r.mc[at[0]]),
                    "value": None if r.v_old is None else float(r.v_old[at[0]]),
                    "value_code": None if r.v_old is None or not len(code) else float(r.v_old[code[0]]),
                    "advantage": mean(r.adv),
                    "logp": mean(r.old_logp),
                    "sampled_logp": mean(r.rollout_logp),
                }
            )
    return out


def _leave_one_out(rows) -> None:
    """TRLOO over (task, policy, turn): every token of a turn gets the turn's advantage, from the Monte-Carlo return at its first token."""
    keys = [(i, turn) for i, r in enumerate(rows) for turn in np.unique(r.turn)]
    returns = [rows[i].mc[rows[i].turn == turn][0] for i, turn in keys]
    result = advantage.trloo(returns, [f"{rows[i].task} {rows[i].checkpoint} {turn}" for i, turn in keys])
    table = dict(zip(keys, result, strict=True))
    for i, r in enumerate(rows):
        r.adv = np.array([table[i, turn] for turn in r.turn])


def _score(groups, field: str, module, call, settings: Settings, world) -> None:
    """Set `field` [A] of all rows to what `call(module, batch)` [M] gives without gradients, on every rank."""
    module.eval()
    mine = {}
    with torch.no_grad():
        for chosen in groups:
            for b, members in batching.micro_batches(
                chosen, tokens=settings.tokens, rank=world.rank, world=world.size, device=world.device
            ):
                values = call(module, b).float().cpu().numpy()
                if members:
                    ends = np.cumsum([r.actions for r in members])[:-1]
                    mine |= {r.id: part for r, part in zip(members, np.split(values, ends), strict=True)}
    everything = {key: part for one in world.gather(mine) for key, part in one.items()}
    for chosen in groups:
        for r in chosen:
            setattr(r, field, everything[r.id])


def _step(chosen, engines, settings: Settings, rates, world, entropy: float | None) -> tuple[dict[str, float], str | None]:
    """One update of every engine on `chosen`: (metrics over all ranks, None), or (metrics, why it diverged) and no update.

    entropy: that of the fit's first step; None in the first.
    """
    total = sum(r.actions for r in chosen)  # N: before any rejection, of all ranks
    scale = world.size / total  # DeepSpeed divides the sum of gradients by the number of ranks
    out = {"action_tokens": float(total)}
    if settings.positive_coef:
        _mark_positive(chosen, settings.min_reward)
    for name, current in engines.items():
        current.train()
        parts = []
        for b, members in batching.micro_batches(chosen, tokens=settings.tokens, rank=world.rank, world=world.size, device=world.device):
            per_token, seen = (_actor_loss if name == "actor" else _critic_loss)(current, b, members, settings)
            scalar = (per_token * b.weight).sum() * scale
            if not torch.isfinite(scalar):
                raise FloatingPointError(f"{name} loss: got {scalar.item()}, wanted a finite number; nothing of this step is kept")
            current.backward(scalar, scale_wrt_gas=False)
            if members:
                parts.append({key: np.asarray(value.detach().cpu() if torch.is_tensor(value) else value) for key, value in seen.items()})
        gathered = [part for one in world.gather(parts) for part in one]
        arrays = {key: np.concatenate([part[key] for part in gathered]) for key in gathered[0]}
        out |= _metrics(name, arrays, settings)
        if diverged := _diverged(out, settings, entropy):
            return out, diverged
        out |= {f"{name}_grad_norm": engine.step(current, rates[name]), f"{name}_lr": rates[name]}
    return out, None


def _diverged(metrics: dict[str, float], settings: Settings, entropy: float | None) -> str | None:
    """What in the metrics of a step is beyond its bound, with both numbers."""
    if settings.diverged_kl is not None and metrics.get("approx_kl_k3", 0.0) > settings.diverged_kl:
        return f"approx_kl_k3 {metrics['approx_kl_k3']:.3g} above {settings.diverged_kl:g}"
    if settings.diverged_entropy is not None and entropy is not None and metrics.get("entropy", 0.0) > settings.diverged_entropy * entropy:
        return f"entropy {metrics['entropy']:.3g} above {settings.diverged_entropy:g} times the first step's {entropy:.3g}"
    return None


def _mark_positive(chosen, min_reward: float) -> None:
    """Set `positive` [A]: N / N+ on the N+ action tokens of positive episodes, so that a sum over all N divided by N is their mean."""
    good = [r.reward >= min_reward for r in chosen]
    share = sum(r.actions for r in chosen) / max(1, sum(r.actions for r, fine in zip(chosen, good, strict=True) if fine))
    for r, fine in zip(chosen, good, strict=True):
        r.positive = np.full(r.actions, share if fine else 0.0)


def _actor_loss(current, b, members, settings: Settings):
    """(loss [M], arrays for the metrics) of one micro-batch."""
    imitate = settings.method in ("sft", "rft")
    ask = None if imitate else torch.arange(0, len(b.src), max(1, len(b.src) // 256), device=b.src.device)
    logp = current(b.ids, b.positions, b.src, b.label, b.spans, 1.0 if imitate else settings.temperature, entropy_at=ask)
    if imitate:
        return loss.nll(logp), {"loss": -logp}
    logp, entropy = logp
    f = b.fields
    weight, kept = torch.ones_like(logp), torch.ones_like(logp)
    if settings.tis_cap is not None:
        weight = loss.tis_weight(f["old_logp"], f["rollout_logp"], cap=settings.tis_cap)
    if settings.mrs_band is not None:
        kept = loss.mrs_keep(f["old_logp"], f["rollout_logp"], b.seq, band=settings.mrs_band, veto=settings.mrs_veto)
    per_token = loss.policy(
        logp, f["old_logp"], f["adv"], low=settings.clip_low, high=settings.clip_high, dual=settings.dual_clip, weight=weight * kept
    )
    seen = {"logp": logp, "loss": per_token, "weight": weight, "kept": kept, "entropy": entropy}
    seen |= {name: f[name] for name in ("old_logp", "rollout_logp", "adv")}
    if members and members[0].kind is not None:
        seen["entropy_kind"] = np.concatenate([r.kind for r in members])[ask.cpu().numpy()]
    if settings.kl and settings.kl_coef:
        term = loss.kl_loss(logp, f["ref_logp"], settings.kl)
        per_token, seen["kl"] = per_token + settings.kl_coef * term, term
    if settings.positive_coef:
        term = f["positive"] * loss.nll(logp)
        per_token, seen["positive"] = per_token + settings.positive_coef * term, term
    return per_token, seen


def _critic_loss(current, b, members, settings: Settings):
    v = current(b.ids, b.positions, b.src, b.spans)
    per_token = loss.value(v, b.fields["ret"], b.fields["v_old"], clip=settings.value_clip)
    seen = {"v": v, "loss": per_token, "ret": b.fields["ret"], "v_old": b.fields["v_old"]}
    if members:
        cat = lambda arrays: np.concatenate(list(arrays))
        at = [batching.milestones(r) for r in members]
        seen |= {
            "where": cat(np.arange(r.actions) / r.actions for r in members),
            "last": cat(np.arange(r.actions) == r.actions - 1 for r in members),
            "mc": cat(r.mc for r in members),
            "task": cat(np.full(r.actions, zlib.crc32(r.task.encode())) for r in members),
            **{name: cat(one[name] for one in at) for name in at[0]},
        }
    return per_token, seen


def _metrics(name: str, arrays, settings: Settings) -> dict[str, float]:
    if name == "critic":
        return measure.critic(arrays, clip=settings.value_clip)
    if settings.method in ("sft", "rft"):
        return {"loss": float(arrays["loss"].mean()), "perplexity": float(np.exp(min(arrays["loss"].mean(), 20.0)))}
    out = measure.policy(arrays, low=settings.clip_low, high=settings.clip_high) | measure.entropy(arrays)
    extra = {"kl": "kl_reference", "positive": "positive_nll"}
    return out | {shown: float(arrays[key].mean()) for key, shown in extra.items() if key in arrays}


def _export(engines, adapters, tokenizer, parents, world, out, critic_out, kind, round) -> dict[str, Checkpoint]:
    records = {}
    for name, path in (("actor", out), ("critic", critic_out)):
        if name in engines and path is not None:
            if name in adapters:
                lora.merge(adapters[name])
            with engine.whole(engines[name]):
                if world.rank == 0:
                    net = engines[name].module.model if name == "actor" else engines[name].module
                    made = model.save(net, tokenizer, path, parent=parents[name], kind=kind if name == "actor" else "critic", round=round)
            records[name] = world.gather(made if world.rank == 0 else None)[0]
    return records


def _close(engines) -> None:
    for current in engines.values():
        current.destroy()
