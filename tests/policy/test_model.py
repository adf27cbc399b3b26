import json

import pytest
import torch

from policy import attention, model
from tests.policy.conftest import make

CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "write\nit"}]


def test_tokenizer_round_trips_any_text_and_keeps_digits_single(tokenizer):
    text = "float x = 1024.5f;\n\t// café ≤ 漢 \x00 <tool_call>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("1024")) == 4
    assert tokenizer.eos_token == model.END and len(tokenizer.encode(model.END)) == 1


def test_a_longer_chat_continues_the_shorter_one(tokenizer):
    def ids(chat, prompt):
        return tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=prompt, return_dict=False)

    model.check_template(tokenizer)
    longer = [*CHAT, {"role": "assistant", "content": "x"}, {"role": "tool", "content": "ok"}]
    assert ids(longer, True)[: len(ids(CHAT, True))] == ids(CHAT, True)


def test_a_template_that_drops_earlier_thoughts_is_refused(tokenizer):
    import copy

    forgetful = copy.deepcopy(tokenizer)
    forgetful.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(ValueError, match="rewrites history"):
        model.check_template(forgetful)
    forgetful.chat_template = "{{ raise_exception('no tools here') }}"
    with pytest.raises(ValueError, match="no tools here"):
        model.check_template(forgetful)


def test_create_is_deterministic_and_leaves_the_global_random_state(tokenizer):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    a, b, c = (model.create(tokenizer, hidden=32, layers=1, heads=2, kv_heads=1, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a[k], b[k]) for k in a) and not all(torch.equal(a[k], c[k]) for k in a)


@pytest.mark.parametrize("tied", [True, False])
def test_saved_checkpoint_loads_to_the_same_logits(tokenizer, tmp_path, tied):
    path = make(tokenizer, tmp_path / "m", seed=1, tied=tied)
    lm, _, checkpoint = model.load(path)
    again = model.save(lm, tokenizer, tmp_path / "n", parent=checkpoint.id, kind="sft", round=2)
    other, _, read = model.load(tmp_path / "n")
    assert read == again and again.weights == checkpoint.weights and (again.parent, again.kind, again.round) == (checkpoint.id, "sft", 2)
    ids = torch.arange(20)[None]
    assert torch.equal(lm(input_ids=ids).logits, other(input_ids=ids).logits)
    assert list(tmp_path.glob(".*")) == []


def test_bad_checkpoints_say_what_was_got(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        model.load(tmp_path / "nothing")
    path = make(tokenizer, tmp_path / "m", seed=1)
    (path / "tokenizer.json").rename(path / "elsewhere")
    with pytest.raises(ValueError, match=r"without tokenizer\.json"):
        model.load(path)
    (path / "elsewhere").rename(path / "tokenizer.json")
    record = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(record | {"weights": "0" * 64}))
    with pytest.raises(ValueError, match=r"weights.*got hash"):
        model.load(path)


def test_critic_starts_at_zero_without_dropout_and_round_trips(small, tokenizer, tmp_path):
    critic = model.Critic.from_policy(small).train()
    batch = (torch.arange(3, 23)[None], torch.cat([torch.arange(12), torch.arange(8)])[None], torch.tensor([3, 11, 19]), (12, 8))
    assert torch.equal(critic(*batch), torch.zeros(3)) and critic.head.weight.dtype == torch.float32
    torch.nn.init.normal_(critic.head.weight)
    assert torch.equal(critic(*batch), critic(*batch))
    saved = model.save(critic, tokenizer, tmp_path / "critic", parent=None, kind="critic")
    assert torch.equal(model.Critic.load(tmp_path / "critic")(*batch), critic(*batch)) and saved.kind == "critic"
    with pytest.raises(ValueError, match="wanted a policy"):
        model.load(tmp_path / "critic")
    with pytest.raises(ValueError, match="wanted a checkpoint of kind critic"):
        model.Critic.load(small)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_packed_row_equals_single_sequences_and_the_stock_attention(tokenizer, family):
    lm = model.create(tokenizer, family=family, hidden=32, layers=2, heads=4, kv_heads=2, seed=2)
    lengths = (7, 1, 13)
    ids = torch.randint(3, 290, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(n) for n in lengths])
    packed = lm.base_model(input_ids=ids[None], position_ids=positions[None], use_cache=False, spans=lengths).last_hidden_state[0]
    lm.set_attn_implementation("eager")
    single = torch.cat([lm.base_model(input_ids=part[None], use_cache=False).last_hidden_state[0] for part in ids.split(lengths)])
    assert (packed - single).abs().max() <= 1e-6
    lm.set_attn_implementation(attention.NAME)
    bled = lm.base_model(input_ids=ids[None], position_ids=positions[None], use_cache=False, spans=(sum(lengths),)).last_hidden_state[0]
    assert (bled - single).abs().max() > 1e-3
    with pytest.raises(ValueError, match="spans"):
        lm.base_model(input_ids=ids[None], position_ids=positions[None], use_cache=False, spans=(7, 1))


def test_common_lines_are_one_token_and_every_text_still_round_trips(tmp_path):
    texts = [f"int main() {{\n    v = {i};\n    return 0;\n}}\n" for i in range(20)]
    tokenizer = model.train_tokenizer(texts, 300, line_share=0.5)
    tokenizer.save_pretrained(tmp_path)
    for loaded in (tokenizer, model.load_tokenizer(tmp_path)):
        assert len(loaded.encode("int main() {\n", add_special_tokens=False)) == 1
        assert len(loaded.encode("    v = 3;\n", add_special_tokens=False)) > 1
        for text in [*texts, "x int main() {\n\n    return 0;\n tail é", "return 0;"]:
            assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text
