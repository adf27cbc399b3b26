"""The options of reinforcement, each against numbers worked out by hand or a computation of its own."""

import collections
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from data.records import Task, Trajectory, Turn
from policy import batch, curriculum, engine, lora, loss, measure, memory, model, train
from policy.prompt import call_text
from tests.policy.test_train import PPO, distance, run, weights
from tests.policy.toys import several, trajectory

TASKS = [Task(source=f"task {i}", origin="user") for i in range(6)]


def test_the_latest_rewards_of_a_task_replace_its_earlier_ones():
    history = curriculum.remember(
        {"a": [1.0, 2.0], "b": [3.0]}, [trajectory(i, turns=[(1, 0)], reward=r, task="a") for i, r in enumerate((None, 0.0, 2.0))]
    )
    assert history == {"a": [0.0, 2.0], "b": [3.0]}


def test_tasks_are_drawn_in_proportion_to_the_variance_of_their_rewards_with_a_floor():
    history = {TASKS[0].id: [0.0, 4.0], TASKS[1].id: [0.0, 2.0], TASKS[2].id: [3.0, 3.0], TASKS[3].id: [1.0]}
    weights = [4.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    first = collections.Counter(curriculum.draw(TASKS, 1, seed, history=history, floor=0.5)[0].id for seed in range(8000))
    for task, weight in zip(TASKS, weights, strict=True):
        assert first[task.id] / 8000 == pytest.approx(weight / sum(weights), abs=0.02)  # 0.02 = 3.6 standard errors of the commonest


def test_a_draw_depends_on_the_seed_and_not_on_the_order_and_draws_nothing_twice():
    draw = lambda tasks, seed, count=3: curriculum.draw(tasks, count, seed, history={TASKS[4].id: [0.0, 9.0]}, floor=0.1)
    assert draw(TASKS, 1) == draw(TASKS[::-1], 1) and len({t.id for t in draw(TASKS, 1)}) == 3
    assert len({tuple(t.id for t in draw(TASKS, seed)) for seed in range(20)}) > 5
    assert sorted(t.id for t in draw(TASKS, 1, 0)) == sorted(t.id for t in TASKS)
    assert draw(TASKS[:5], 1, 0) == [t for t in draw(TASKS, 1, 0) if t is not TASKS[5]]


def test_a_model_from_elsewhere_has_no_history(tmp_path):
    assert curriculum.load(tmp_path) == {}
    curriculum.save({"a": [1.0, -1.0]}, tmp_path)
    assert curriculum.load(tmp_path) == {"a": [1.0, -1.0]}


def test_the_loss_on_positives_is_the_mean_over_their_tokens_alone(small):
    lm, _, _ = model.load(small)
    actor, rows = model.Actor(lm), batch.rows(several(6), rewarded=True, sampled=True)
    for r in rows:
        r.old_logp, r.adv = r.rollout_logp, np.zeros(r.actions)
    settings = train.Settings(**PPO | {"positive_coef": 0.5, "min_reward": 1.0})
    train._mark_positive(rows, settings.min_reward)
    per_token, seen = train._actor_loss(actor, batch.collate(rows), rows, settings)
    good = batch.collate([r for r in rows if r.reward >= 1.0])
    wanted = -actor(good.ids, good.positions, good.src, good.label, good.spans).mean()
    total = sum(r.actions for r in rows)
    assert 0 < len(good.src) < total
    assert (per_token.sum() / total).item() == pytest.approx(0.5 * wanted.item(), rel=1e-5)
    assert train._metrics("actor", {k: v.detach().numpy() for k, v in seen.items()}, settings)["positive_nll"] == pytest.approx(
        wanted.item(), rel=1e-5
    )
    train._mark_positive(rows, 99.0)
    assert all((r.positive == 0).all() for r in rows)


def test_positives_split_over_micro_batches_weigh_the_same(small, tmp_path):
    settings = {"positive_coef": 1.0, "min_reward": 1.0, "batch": 12}
    whole, split = (run(small, tmp_path, settings=settings | {"tokens": tokens}) for tokens in (4096, 20))
    assert split[2][0]["actor_grad_norm"] == pytest.approx(whole[2][0]["actor_grad_norm"], rel=1e-4)
    assert split[2][0]["positive_nll"] == pytest.approx(whole[2][0]["positive_nll"], rel=1e-5)
    assert whole[2][0]["actor_grad_norm"] != pytest.approx(run(small, tmp_path, settings={"batch": 12})[2][0]["actor_grad_norm"], rel=1e-2)


def test_kl_is_measured_to_the_given_reference(small, tokenizer, tmp_path):
    from tests.policy.conftest import make

    other = make(tokenizer, tmp_path / "other", seed=5)
    log = run(small, tmp_path, settings={"kl": "k3", "kl_coef": 0.1, "batch": 12}, reference=other)[2]
    b = batch.collate(batch.rows(several(12), rewarded=True, sampled=True))
    mine, theirs = (model.Actor(model.load(p)[0])(b.ids, b.positions, b.src, b.label, b.spans).detach() for p in (small, other))
    assert log[0]["kl_reference"] == pytest.approx(loss.kl(mine, theirs, "k3").mean().item(), rel=1e-4)


@pytest.mark.parametrize(("bound", "name"), [({"diverged_kl": 1e-6}, "approx_kl_k3"), ({"diverged_entropy": 1.0001}, "entropy")])
def test_a_fit_ends_before_the_step_that_shows_divergence(small, tokenizer, tmp_path, bound, name):
    data = several(12)
    settings, places = {"batch": 12, "epochs": 6, "lr": 5e-3, "method": "trloo"}, {}
    if name == "entropy":  # drawn to a flat reference
        flat = model.create(tokenizer, hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64, context=512)
        model.save(flat, tokenizer, tmp_path / "flat", parent=None, kind="base")
        settings, places = settings | {"kl": "k2", "kl_coef": 100.0}, {"reference": tmp_path / "flat"}
    free = run(small, tmp_path / "free", data, settings=settings, **places)[2]
    fits = []
    for work in (None, tmp_path / "w", tmp_path / "w"):  # the last resumes what has ended
        log = []
        wanted = train.Settings(**PPO | settings | bound)
        fits.append(train.fit(data, wanted, policy=small, out=tmp_path / "p", work=work, log=log.append, device="cpu", **places))
        if len(fits) < 3:
            assert len(log) < len(free) and all(m[name] == pytest.approx(f[name], rel=1e-4) for m, f in zip(log, free, strict=False))
            assert "actor_grad_norm" not in log[-1] and all("actor_grad_norm" in m for m in log[:-1])
            value = log[-1][name] / (log[0][name] if name == "entropy" else 1.0)
            assert value > next(iter(bound.values()))
    assert fits[0].steps == fits[1].steps == fits[2].steps >= 1 and fits[0].ended == fits[1].ended == fits[2].ended
    assert fits[0].ended.startswith(name) and f"at step {fits[0].steps + 1} of 6" in fits[0].ended
    before = run(small, tmp_path / "before", data, settings=settings | {"epochs": fits[0].steps}, **places)[0]
    assert distance(weights(fits[0].policy), before) == 0


def test_a_fit_within_its_bounds_is_the_fit_without_them(small, tmp_path):
    free = run(small, tmp_path / "a", settings={"epochs": 2})
    bound = run(small, tmp_path / "b", settings={"epochs": 2, "diverged_kl": 1e3, "diverged_entropy": 1e3})
    assert all(torch.equal(free[0][k], bound[0][k]) for k in free[0])


@pytest.mark.parametrize(
    "wrong",
    [{"clip_low": 1.0}, {"clip_high": 0.0}, {"dual_clip": 1.0}, {"value_clip": 0.0}, {"kl_coef": 0.1}, {"positive_coef": -1.0}, {"tis_cap": 0.5},
     {"mrs_band": (1.1, 1.2)}, {"diverged_entropy": 1.0}],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: got"):
        train.Settings(**PPO | wrong)


def test_the_baseline_is_of_one_tasks_samples_by_one_policy_and_one_turn():
    made = [
        trajectory(i, turns=[(2, 1), (3, 0)], reward=r, task=task)
        for i, (r, task) in enumerate([(1, "a"), (0, "a"), (0, "a"), (2, "b"), (5, "b")])
    ]
    made[4] = dataclasses.replace(made[4], checkpoint="another")
    made.append(trajectory(9, turns=[(4, 0)], reward=2, task="a"))
    rows = batch.rows(made, rewarded=True, sampled=True)
    for r in rows:  # gamma 0.5 a turn
        r.mc = np.where(r.turn == r.turn[-1], r.reward, 0.5 * r.reward)
    train._leave_one_out(rows)
    # first turns of a return 0.5, 0, 0 and 2 (which has no second), second turns 1, 0, 0
    first, second = [r.adv[0] for r in rows], [r.adv[-1] for r in rows]
    assert first == pytest.approx([0.5 - 2 / 3, -2.5 / 3, -2.5 / 3, 1.0, 2.5, 2 - 0.5 / 3])
    assert second[:5] == pytest.approx([1.0, -0.5, -0.5, 2.0, 5.0])
    assert all(len(set(r.adv[r.turn == turn])) == 1 for r in rows for turn in set(r.turn))


CODE = "int f() {\n  return 1;\n}"


@pytest.mark.parametrize(
    ("text", "plan", "code"),
    [
        ("One loop.\n" + call_text("write", path="k.cpp", content=CODE) + "\n" + call_text("compile"), "One loop.\n\n", CODE + "\n"),
        ('So.<tool_call>{"name": "write", "arguments": {"path": "a", "content": "x = \\"1\\""}}</tool_call>', "So.", 'x = \\"1\\"'),
        ("Think\n```python\nx = 1\n```\nDone", "Think\n\nDone", "x = 1\n"),
        ("Cut <tool_call>\n<function=write>\n<parameter=content>\nint f", "Cut ", "int f"),
        ("Only words", "Only words", ""),
        (call_text("submit"), "", ""),
    ],
)
def test_plan_and_code_of_a_reply_are_told_apart(text, plan, code):
    found = batch.kinds(text)
    pick = lambda kind: "".join(c for c, k in zip(text, found, strict=True) if k == kind)
    assert (pick(batch.PLAN), pick(batch.CODE)) == (plan, code)


def written(tokenizer, sample, reward, *, task="t", end=True):
    """An episode of two turns: a plan and a file, then a submit."""
    encode = lambda text: tuple(tokenizer.encode(text, add_special_tokens=False)) + ((tokenizer.eos_token_id,) if end else ())
    actions = encode("Two loops, one sum.\n" + call_text("write", path="k.cpp", content=CODE)), encode(call_text("submit"))
    turns = tuple(
        Turn(index=i, prompt_ids=(5, 6) if i == 0 else (), action_ids=ids, action_logprobs=(-1.0,) * len(ids), observation_ids=(7,))
        for i, ids in enumerate(actions)
    )
    return Trajectory(task=task, checkpoint="c", stage="test", round=0, sample=sample, turns=turns, stop="done", reward=reward)


def test_tokens_are_marked_as_the_text_that_they_spell(tokenizer):
    (r,) = rows = batch.rows([written(tokenizer, 0, 1.0)], rewarded=True, sampled=True)
    batch.mark(rows, tokenizer)
    said = lambda kind, turn: tokenizer.decode(r.label[(r.kind == kind) & (r.turn == turn)])
    assert CODE in said(batch.CODE, 0) and said(batch.CODE, 0).strip() == CODE
    assert said(batch.PLAN, 0).strip() == "Two loops, one sum." and not (r.kind[r.turn == 1] != batch.OTHER).any()
    assert r.kind[r.label == tokenizer.eos_token_id].tolist() == [batch.OTHER] * 2
    at = {name: np.flatnonzero(where) for name, where in batch.milestones(r).items()}
    code = np.flatnonzero(r.kind == batch.CODE)
    assert at["prompt"].tolist() == [0] and at["plan"].tolist() == [code[0]] and at["code"].tolist() == [code[-1] + 1]


def test_explained_variance_within_a_task_forgives_nothing_that_the_task_explains():
    task, target = np.array([1, 1, 1, 2, 2, 2]), np.array([0.0, 1.0, 2.0, 10.0, 11.0, 12.0])
    knows_the_task = np.array([1.0, 1, 1, 11, 11, 11])
    assert measure.explained_variance(knows_the_task, target) > 0.97 and measure.explained_within(knows_the_task, target, task) == 0.0
    assert measure.explained_within(target + 100 * task, target, task) == 1.0
    assert measure.explained_within(-target, target, task) == -3.0
    assert measure.explained_within(target, 3.0 * task, task) == 0.0  # nothing varies within a task


def test_a_fit_measures_critic_and_entropy_at_plan_and_code(small, tokenizer, tmp_path):
    data = [written(tokenizer, i, float(i % 3), task=f"t{i % 2}") for i in range(6)]
    first = run(small, tmp_path, data, settings={"batch": 6, "epochs": 2})[2][0]
    lm, _, _ = model.load(small)
    rows = batch.rows(data[:1], rewarded=True, sampled=True)
    batch.mark(rows, tokenizer)
    b = batch.collate(rows)
    _, entropy = model.Actor(lm)(b.ids, b.positions, b.src, b.label, b.spans, entropy_at=torch.arange(len(b.src)))
    # all six say the same, so the mean over the sampled tokens is near that over one episode's
    for name, kind in (("plan", batch.PLAN), ("code", batch.CODE)):
        assert first[f"entropy_{name}"] == pytest.approx(entropy[torch.from_numpy(rows[0].kind == kind)].mean().item(), rel=0.1)
    assert {
        f"explained_var_mc{place}{within}" for place in ("", "_prompt", "_plan", "_code") for within in ("", "_within_task")
    } <= first.keys()
    assert first["turns_min"] == first["turns_max"] == 2.0
    later = run(small, tmp_path, data, settings={"method": "value", "batch": 6, "epochs": 30, "lr": 3e-3, "lam_critic": 1.0})[2][-1]
    # the same words for every reward: nothing within a task can be known
    assert abs(later["explained_var_mc_plan_within_task"]) < 1e-6


def test_an_imitation_is_not_marked(small, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "mark", lambda *a: pytest.fail("marked"))
    run(small, tmp_path, settings={"method": "sft"})


def test_a_process_leaves_its_group_without_a_word():
    script = "from policy import engine; import torch.distributed as d, atexit; atexit.register(lambda: print(d.is_initialized()));" + (
        "world = engine.launch('cpu'); engine.launch('cpu'); print(world.size, d.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    # handlers run last in, first out: the group is gone when the earlier one looks
    assert done.returncode == 0 and done.stdout.split() == ["1", "True", "False"] and "destroy_process_group" not in done.stderr


def test_nccl_is_told_its_device(monkeypatch):
    """Without a GPU: what would be asked of torch there."""
    import deepspeed

    asked = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda place: None)
    monkeypatch.setattr(deepspeed.accelerator.get_accelerator(), "_name", "cuda")
    monkeypatch.setattr(deepspeed, "init_distributed", lambda **k: None)
    monkeypatch.setattr(engine.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(engine.dist, "init_process_group", lambda backend, **k: asked.update(k, backend=backend))
    monkeypatch.setattr(engine.dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(engine.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(engine.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(engine.atexit, "register", lambda leave: None)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    engine.launch("cuda:0")
    assert asked["backend"] == "nccl" and asked["device_id"] == torch.device("cuda:0")


@pytest.mark.parametrize("method", ["ppo", "sft"])
def test_checkpointing_gives_the_same_weights_and_keeps_fewer_activations(small, tmp_path, method):
    base = run(small, tmp_path / "a", settings={"method": method, "epochs": 2})
    other = run(small, tmp_path / "b", settings={"method": method, "epochs": 2, "checkpointing": True})
    assert all(distance(a, b) <= 1e-6 for a, b in zip(base[:2], other[:2], strict=True) if a)
    assert kept(small, checkpointing=True) < 0.6 * kept(small, checkpointing=False)


def kept(path, *, checkpointing, tokens=480):
    """Bytes of the tensors that the backward pass of one row keeps, parameters left out."""
    lm, _, _ = model.load(path)
    lm.train()
    if checkpointing:
        lm.gradient_checkpointing_enable({"use_reentrant": False})
    own, seen = {p.untyped_storage().data_ptr() for p in lm.parameters()}, {}

    def note(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes(), tensor  # held, so that no address comes twice
        return tensor

    positions = torch.arange(tokens)[None]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        lm.base_model(input_ids=positions % 290, position_ids=positions, use_cache=False, spans=(tokens,))
    return sum(size for size, _ in seen.values())


def test_the_forecast_is_near_what_is_counted(tokenizer, tmp_path):
    from tests.policy.conftest import make

    path = make(tokenizer, tmp_path / "m", seed=0, hidden=128, layers=4, heads=4, kv_heads=2, intermediate=384)
    lm, _, _ = model.load(path)
    count = sum(p.numel() for p in lm.parameters())
    assert memory.parameters(path) == count
    guess = memory.activations(lm.config, 480, width=4, checkpointing=False)
    assert 0.6 * guess < kept(path, checkpointing=False) < 1.4 * guess
    engine.launch("cpu")
    wrapped = engine.initialize(model.Actor(lm), lr=1e-3)
    b = batch.collate(batch.rows(several(4), rewarded=True, sampled=True))
    wrapped.backward(wrapped(b.ids, b.positions, b.src, b.label, b.spans).sum(), scale_wrt_gas=False)
    wrapped.step()
    moments = sum(
        t.nbytes for state in wrapped.optimizer.optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.numel() > 1
    )
    told = memory.forecast({"actor": path}, tokens=480, actions=100, zero_stage=1, ranks=1, dtype="float32")
    assert told.weights == told.gradients == 4 * count and told.optimizer == 16 * count and moments == pytest.approx(8 * count, rel=0.01)
    wrapped.destroy()
    halved = memory.forecast({"actor": path}, tokens=480, actions=100, zero_stage=3, ranks=2, dtype="float32")
    assert (halved.weights, halved.gradients, halved.optimizer) == (2 * count, 2 * count, 8 * count)
    pair = memory.forecast({"actor": path, "critic": path}, tokens=480, actions=100, zero_stage=1, ranks=1, dtype="bfloat16")
    assert pair.weights == 4 * count and pair.activations < told.activations


def test_a_fit_that_cannot_fit_is_refused_with_the_numbers_and_nothing_is_loaded(small, tmp_path, monkeypatch):
    lines = []
    run(small, tmp_path, tell=lines.append)
    assert len(lines) == 1 and lines[0].startswith("memory: about 0.0") and "GiB free on cpu" in lines[0]
    monkeypatch.setattr(memory, "available", lambda device: 1 << 20)
    monkeypatch.setattr(model, "load", lambda *a, **k: pytest.fail("loaded"))
    with pytest.raises(
        ValueError,
        match=r"memory: got a fit that needs about 0.0\d GiB \(weights .*activations .*\), wanted at most the 0.00 GiB free on cpu",
    ):
        run(small, tmp_path / "b")


def test_a_stopped_fit_goes_on_with_smaller_micro_batches(small, tmp_path):
    settings = {"epochs": 2, "batch": 5, "save_after": 0.0}
    stopped = train.fit(several(12), train.Settings(**PPO | settings), policy=small, work=tmp_path / "w", stop=lambda: True, device="cpu")
    assert stopped.steps == 1
    whole = run(small, tmp_path / "whole", settings=settings)
    rest = run(small, tmp_path / "rest", settings=settings | {"tokens": 40, "checkpointing": True}, work=tmp_path / "w")
    assert [m["step"] for m in rest[2]] == [2, 3, 4, 5, 6] and distance(rest[0], whole[0]) <= 1e-4


def test_adapters_alone_are_trained_and_the_checkpoint_is_whole(small, tmp_path):
    pytest.importorskip("peft")
    before = weights(model.read_record(small))
    still = run(small, tmp_path / "still", settings={"lora_rank": 4, "lr": 0.0, "critic_lr": 0.0})[0]
    assert still.keys() == before.keys() and distance(still, before) == 0.0  # adapters begin as nothing
    settings = {"lora_rank": 4, "epochs": 2, "batch": 5, "save_after": 0.0}
    after, critic, log = run(small, tmp_path / "p", settings=settings)
    assert log[0]["ratio_min"] == log[0]["ratio_max"] == 1.0
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all("proj" in name for name in moved) and critic["value_head.safetensors weight"].abs().max() > 0
    change = next(after[name] - before[name] for name in sorted(moved) if "gate_proj" in name)
    assert torch.linalg.matrix_rank(change, rtol=1e-3) <= 4
    train.fit(several(12), train.Settings(**PPO | settings), policy=small, work=tmp_path / "w", stop=lambda: True, device="cpu")
    again = run(small, tmp_path / "r", settings=settings, work=tmp_path / "w")[0]
    assert all(torch.equal(again[name], after[name]) for name in after)


def test_adapters_without_peft_are_one_line(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"lora_rank: got 8 without the package peft, wanted pip install 'cuda-agent\[lora\]'"):
        lora.attach(model.load(small)[0], 8, 0)


@pytest.mark.parametrize("method", ["ppo", "trloo", "value"])
def test_a_fit_says_what_each_turn_was_worth_also_when_it_had_ended_before_a_kill(small, tokenizer, tmp_path, method):
    data = [written(tokenizer, i, float(i % 3), task=f"t{i % 2}") for i in range(6)]
    wanted = train.Settings(**PPO | {"method": method, "whiten": False, "gamma": 0.5, "batch": 6, "lr": 1e-2, "epochs": 2})
    fits = [
        train.fit(data, wanted, policy=small, out=tmp_path / "p", critic_out=tmp_path / "c", work=tmp_path / "w", device="cpu")
        for _ in range(2)
    ]
    assert len(fits[0].credit) == 12 and fits[0].credit == fits[1].credit
    by = {(row["trajectory"], row["turn"]): row for row in fits[0].credit}
    for t in data:
        first, second = by[t.id, 0], by[t.id, 1]
        assert (first["return"], second["return"]) == (0.5 * t.reward, t.reward) and second["sampled_logp"] == -1.0
        assert first["n_code"] > 0 and first["n_plan"] > 0 and second["n_code"] == 0 and second["value_code"] is None
        if method == "trloo":
            others = [o.reward for o in data if o.task == t.task and o is not t]
            assert second["advantage"] == pytest.approx(t.reward - np.mean(others)) and second["value"] is None
        else:
            assert second["value"] == first["value"] == 0.0 and second["advantage"] == pytest.approx(t.reward)  # V = 0 at the start
        assert (first["logp"] is None) == (method == "value")
