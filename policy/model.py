"""Models, tokenizers and checkpoints: create, load, save, and the critic.

A checkpoint is a folder: config, *.safetensors, tokenizer files, and checkpoint.json (the record). A folder from
elsewhere has no checkpoint.json and is read as kind "base". Nothing is downloaded: paths only.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Iterable

import torch
from torch import nn

from data.records import Checkpoint
from policy import attention

START, END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HEAD = "value_head.safetensors"
RECORD = "checkpoint.json"


def train_tokenizer(texts: Iterable[str], vocab_size: int, *, line_share: float | None = None):
    """Byte-level BPE over `texts` -> PreTrainedTokenizerFast with the ChatML template.

    line_share: whole lines that stand in at least this share of the texts become one token each, beyond `vocab_size`: what every
    candidate repeats then costs a small model one step a line, while the lines that differ stay in small pieces.

    Every byte is a token, so any text round-trips; digits stay single, so numbers are read digit by digit. Small corpora
    may give fewer than `vocab_size` tokens (at least 259: the bytes and three specials). Raises ValueError below that.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    texts = list(texts)
    specials = [TEXT_END, START, END]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(specials):
        raise ValueError(f"vocab_size: got {vocab_size}, wanted at least {len(alphabet) + len(specials)}")
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    )
    if line_share is not None:
        counts = Counter(line for text in texts for line in set(text.splitlines(keepends=True)) if len(line) > 2 and line.endswith("\n"))
        common = sorted(line for line, count in counts.items() if count >= line_share * len(texts))
        raw.add_tokens([AddedToken(line, normalized=False) for line in common])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=END, pad_token=TEXT_END, additional_special_tokens=[START], clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def create(
    tokenizer,
    *,
    family: str = "qwen3",
    hidden: int = 192,
    layers: int = 5,
    heads: int = 6,
    kv_heads: int = 2,
    intermediate: int = 512,
    context: int = 2048,
    tied: bool = True,
    seed: int = 0,
):
    """A causal LM from scratch, fp32, sized for `tokenizer`; about 2.4M parameters by default at 2,048 tokens of vocabulary.

    Deterministic in `seed` and does not disturb the global random state. Raises ValueError for an unknown family.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    families = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    if family not in families:
        raise ValueError(f"family: got {family!r}, wanted {' or '.join(families)}")
    config_class, model_class = families[family]
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=intermediate,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config._attn_implementation = attention.register()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class(config).float()


def check_template(tokenizer) -> None:
    """Raise ValueError unless a longer chat always renders as a continuation of the shorter one.

    Templates that drop earlier <think> blocks, or re-arrange tool messages, would make the ids of a later turn differ from
    those that were sampled: such a model cannot be trained turn by turn.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("tokenizer: got one without a chat template, wanted a template with the roles system, user, assistant, tool")
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    for i in range(3):
        chat.append({"role": "assistant", "content": f"<think>\nwhy {i}\n</think>\n\nanswer {i}"})
        chat.append({"role": "tool", "content": f"result {i}"})

    def render(messages, prompt):
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)

    try:
        whole = render(chat, False)
        for cut in range(3, len(chat), 2):
            # up to the closing of an assistant turn: what follows its end-of-turn token may differ in white space only
            part = render(chat[:cut], False).rstrip()
            if not whole.startswith(part):
                raise ValueError(
                    f"chat template: got one that rewrites history after message {cut}, wanted every chat to continue its beginning"
                )
            asked = render(chat[: cut - 1], True)
            if not whole.startswith(asked.rstrip()):
                raise ValueError(
                    f"chat template: got a generation prompt that the finished turn {cut} does not begin with, wanted the same text"
                )
    except ValueError:
        raise
    except Exception as error:  # templates raise what they like (jinja2's own errors, raise_exception)
        raise ValueError(
            f"chat template: got {type(error).__name__}: {error}, wanted one that renders system, user, assistant and tool"
        ) from error


def _sha256(paths: list[pathlib.Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def weights_hash(path) -> str:
    """SHA-256 over the weight files of a folder in the order of their names. Raises ValueError when there is none."""
    folder = pathlib.Path(path)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise ValueError(f"model path: got {str(path)!r} without weight files, wanted a folder with *.safetensors")
    return _sha256(files)


def template_hash(tokenizer) -> str:
    return hashlib.sha256((tokenizer.chat_template or "").encode()).hexdigest()


def read_record(path) -> Checkpoint:
    """The Checkpoint of a folder, its weights re-hashed.

    Raises ValueError when the folder is missing, has no tokenizer, or differs from its checkpoint.json.
    """
    folder = pathlib.Path(path)
    if not (folder / "config.json").is_file():
        raise ValueError(f"model path: got {str(path)!r}, wanted a folder with config.json, *.safetensors and tokenizer.json")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"model path: got {str(path)!r} without tokenizer.json, wanted a model with its tokenizer")
    weights, tokenizer = weights_hash(folder), _sha256([folder / "tokenizer.json"])
    record = folder / RECORD
    if not record.is_file():
        template = template_hash(load_tokenizer(folder))
        return Checkpoint(weights=weights, parent=None, kind="base", round=0, path=str(path), tokenizer=tokenizer, template=template)
    checkpoint = Checkpoint.from_dict(json.loads(record.read_text()) | {"path": str(path)})
    for name, got, wanted in (("weights", weights, checkpoint.weights), ("tokenizer", tokenizer, checkpoint.tokenizer)):
        if got != wanted:
            raise ValueError(f"{name} of {str(path)!r}: got hash {got[:16]}, wanted {wanted[:16]} as in {RECORD}")
    return checkpoint


def load_tokenizer(path):
    """The tokenizer of a folder. Raises ValueError without tokenizer.json."""
    from transformers import AutoTokenizer

    if not (pathlib.Path(path) / "tokenizer.json").is_file():
        raise ValueError(f"model path: got {str(path)!r} without tokenizer.json, wanted a model with its tokenizer")
    return AutoTokenizer.from_pretrained(str(path))


def load(path, *, dtype: torch.dtype = torch.float32, device: str = "cpu", trusted: bool = False):
    """(model, tokenizer, Checkpoint) of a folder with any HF causal LM; the model in eval mode, dropout 0, own attention.

    `trusted` skips hashing again what this process has just written. Raises ValueError for a model without tokenizer, a
    template that rewrites history, missing weights, or files that differ from checkpoint.json.
    """
    from transformers import AutoModelForCausalLM

    checkpoint = read_record(path) if not trusted else Checkpoint.from_dict(json.loads((pathlib.Path(path) / RECORD).read_text()))
    if checkpoint.kind == "critic":
        raise ValueError(f"model path: got the critic {str(path)!r}, wanted a policy")
    tokenizer = load_tokenizer(path)
    check_template(tokenizer)
    got = template_hash(tokenizer)
    if got != checkpoint.template:
        raise ValueError(f"template of {str(path)!r}: got hash {got[:16]}, wanted {checkpoint.template[:16]} as in {RECORD}")
    model = _pretrained(AutoModelForCausalLM, path, dtype)
    if model.get_input_embeddings().num_embeddings < len(tokenizer):
        raise ValueError(f"model: got {model.get_input_embeddings().num_embeddings} embeddings, wanted {len(tokenizer)} for its tokenizer")
    return model.to(device).eval(), tokenizer, checkpoint


def _quiet() -> None:
    """No progress bars of a tenth of a second among a stage's lines."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _pretrained(auto, path, dtype):
    _quiet()
    model, report = auto.from_pretrained(
        str(path), dtype=dtype, attn_implementation=attention.register(), attention_dropout=0.0, output_loading_info=True
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(f"weights of {str(path)!r}: got none for {missing[:4]}, wanted all parameters")
    return model


def save(model, tokenizer, path, *, parent: str | None, kind: str, round: int = 0) -> Checkpoint:
    """Write a policy or a `Critic` as a checkpoint folder and return its record. The folder appears at once, by rename.

    An existing folder of that name is replaced. `parent` is the id of the checkpoint that training began with.
    """
    from safetensors.torch import save_file

    _quiet()
    final = pathlib.Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if isinstance(model, Critic):
        model.backbone.save_pretrained(partial)
        save_file({"weight": model.head.weight.detach().cpu().contiguous()}, partial / HEAD)
    else:
        model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    checkpoint = Checkpoint(
        weights=weights_hash(partial),
        parent=parent,
        kind=kind,
        round=round,
        path=str(path),
        tokenizer=_sha256([partial / "tokenizer.json"]),
        template=template_hash(tokenizer),
    )
    (partial / RECORD).write_text(json.dumps(checkpoint.to_dict(), indent=1) + "\n")
    for file in partial.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    if final.exists():
        old = final.with_name(f".{final.name}.{os.getpid()}.old")
        final.rename(old)
        partial.rename(final)
        shutil.rmtree(old)
    else:
        partial.rename(final)
    return checkpoint


class Critic(nn.Module):
    """V(state before the action): a backbone of its own and a linear head in fp32, zero at the start, no bias, no dropout."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.config = backbone.config
        self.head = nn.Linear(backbone.config.hidden_size, 1, bias=False, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)

    @classmethod
    def from_policy(cls, path, *, dtype: torch.dtype = torch.float32) -> Critic:
        """A critic whose backbone starts from the policy (or any HF model) at `path`; V = 0 everywhere."""
        from transformers import AutoModel

        return cls(_pretrained(AutoModel, path, dtype))

    @classmethod
    def load(cls, path, *, dtype: torch.dtype = torch.float32) -> Critic:
        """A saved critic. Raises ValueError when the folder holds no critic or differs from its record."""
        from safetensors.torch import load_file

        if not (pathlib.Path(path) / HEAD).is_file():
            raise ValueError(f"critic path: got {str(path)!r} without {HEAD}, wanted a checkpoint of kind critic")
        read_record(path)
        critic = cls.from_policy(path, dtype=dtype)
        critic.head.load_state_dict(load_file(pathlib.Path(path) / HEAD))
        return critic

    def forward(self, ids, positions, src, spans):
        """ids, positions int64 [1, T]; src int64 [M] into T; spans lengths adding up to T -> values float32 [M]."""
        hidden = self.backbone(input_ids=ids, position_ids=positions, use_cache=False, spans=spans).last_hidden_state
        # an engine in bf16 casts the head too (its master copy stays fp32): the product itself is made in fp32
        return nn.functional.linear(hidden[0, src].float(), self.head.weight.float()).squeeze(-1)


class Actor(nn.Module):
    """The policy as the trainer sees it: log-probabilities of chosen action tokens, never a [M, V] tensor of logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.config = model.config

    def forward(self, ids, positions, src, label, spans, temperature: float = 1.0, *, chunk: int | None = None, entropy_at=None):
        """ids, positions int64 [1, T]; src, label int64 [M]; spans lengths adding up to T -> log-probs float32 [M].

        log softmax(h W^T / T)[label] with the hidden state divided by T; logits in fp32, in chunks of `chunk` tokens.
        With `entropy_at` int64 [K] into M: (log-probs, entropies float32 [K] without gradient).
        """
        from deepspeed.sequence.linear_cross_entropy import vocab_parallel_linear_cross_entropy

        from policy import loss

        hidden = self.model.base_model(input_ids=ids, position_ids=positions, use_cache=False, spans=spans).last_hidden_state
        hidden = hidden[0, src]
        if temperature != 1.0:
            hidden = hidden / temperature
        head = self.model.get_output_embeddings()
        bias = getattr(head, "bias", None)
        logp = -vocab_parallel_linear_cross_entropy(hidden, head.weight, label, bias=bias, reduction="none", chunk_size=chunk)
        return logp if entropy_at is None else (logp, loss.entropy(hidden[entropy_at].detach(), head.weight, bias=bias))
