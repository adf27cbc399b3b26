"""The only prompt builder and the only parser of replies: tokens in, tokens out.

An episode is one list of ids that only grows. The chat template writes the opening; after that an observation is the suffix that
the template puts behind an assistant turn, so that nothing sampled is ever decoded and encoded again. Without a tokenizer
(scripted players, text endpoints) segments carry text only.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from typing import Any

from data.listing import listing
from data.records import Record, Task, ToolCall
from data.tools import BASIC, TABLE, check

TOOLS = BASIC
"""Tools of a prompt that names none."""
MALFORMED = "malformed"
"""Name of the ToolCall that stands in a Turn for a reply that could not be read; its args hold the error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment(Record):
    """A piece of the conversation. `ids` is None without a tokenizer."""

    role: str
    """system, user, assistant or tool."""
    text: str
    ids: tuple[int, ...] | None = None
    """[S] token ids with the template's own tokens around the text; an assistant segment holds exactly the sampled ids."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParseError(Record):
    """Why a reply holds no readable tool call, as one line for the model."""

    line: str


class Prompt:
    """Builds what a player reads and reads what it writes.

    tokenizer: a transformers tokenizer with a chat template, or None. format, backend: what the candidate is.
    detail: "short" (a line, for models that are trained on the task) or "full" (tools and rules spelled out, for those that are not).
    view: how the task is shown: its "source", or its traced "graph" (data/listing.py), which a model of a few million parameters can read.
    tools: names out of data/tools.py.

    Raises ValueError when the template rewrites earlier turns: an appended observation would then differ from a rendered one.
    """

    def __init__(
        self,
        tokenizer,
        *,
        format: str,
        backend: str,
        max_turns: int,
        detail: str = "short",
        view: str = "source",
        tools: tuple[str, ...] = TOOLS,
    ):
        if view not in ("source", "graph"):
            raise ValueError(f"view: got {view!r}, wanted source or graph")
        if detail not in ("short", "full"):
            raise ValueError(f"detail: got {detail!r}, wanted short or full")
        self.tokenizer, self.format, self.backend, self.max_turns, self.view = tokenizer, format, backend, max_turns, view
        self.tools = tools
        self.system = system_text(format, backend, max_turns, detail, tools)
        self.end_id: int | None = None
        self._special: re.Pattern | None = None
        if tokenizer is not None:
            names = sorted((t.content for t in tokenizer.added_tokens_decoder.values() if t.special), key=len, reverse=True)
            self._special = re.compile("|".join(map(re.escape, names))) if names else None
            self._check_template()

    # ------------------------------------------------------------------------------------ building

    def opening(self, task: Task) -> list[Segment]:
        """System line and task, ending with the generation prompt. The ids of all segments together are the first request."""
        shown = task.source if self.view == "source" else listing(task.source, task.mode)
        texts = [("system", self.system), ("user", shown)]
        if self.tokenizer is None:
            return [Segment(role=role, text=text) for role, text in texts]
        messages = [{"role": role, "content": text} for role, text in texts]
        whole = self._render(messages, generate=True)
        try:
            first = self._render(messages[:1])
        except Exception:  # templates may refuse a conversation without a user: then one segment holds all ids
            first = ()
        if whole[: len(first)] != first:
            first = ()
        return [Segment(role="system", text=self.system, ids=first), Segment(role="user", text=shown, ids=whole[len(first) :])]

    def observe(self, text: str, *, closed: bool = True) -> Segment:
        """The tool message behind an assistant turn, with the generation prompt of the next.

        closed: False when the model did not sample the end of its turn, which then stands at the start of the observation.
        """
        if self.tokenizer is None:
            return Segment(role="tool", text=text)
        prefix, whole = self._pair(text)
        cut = max(i for i, token in enumerate(prefix) if token == self.end_id) + 1
        return Segment(role="tool", text=text, ids=((() if closed else (self.end_id,)) + whole[cut:]))

    def encode_action(self, text: str) -> tuple[int, ...] | None:
        """[A] ids of a scripted action with its end of turn; for players that write text. None without a tokenizer."""
        if self.tokenizer is None:
            return None
        return (*self._encode_plain(text), self.end_id)

    def _render(self, messages, generate: bool = False) -> tuple[int, ...]:
        """Ids of a conversation; special tokens come from the template alone, never from a content that spells one."""
        if self._special is None or not any(self._special.search(m["content"]) for m in messages):
            ids = self.tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=generate, return_dict=False)
            return tuple(ids)
        spelled: list[str] = []

        def hide(found: re.Match) -> str:
            spelled.append(found.group())
            return f"{mark}{len(spelled) - 1}{mark}"

        mark = next(c for c in map(chr, range(0xE000, 0xF8FF)) if not any(c in m["content"] for m in messages))
        hidden = [m | {"content": self._special.sub(hide, m["content"])} for m in messages]
        text = self.tokenizer.apply_chat_template(hidden, tokenize=False, add_generation_prompt=generate)
        plain: list[int] = []
        for number, piece in enumerate(text.split(mark)):  # odd pieces are numbers of what was hidden
            plain += self._encode_plain(spelled[int(piece)]) if number % 2 else self.tokenizer.encode(piece, add_special_tokens=False)
        return tuple(plain)

    def _encode_plain(self, text: str) -> list[int]:
        """Ids of a text in which the spelling of a special token is text too."""
        if self._special is None or not self._special.search(text):
            return self.tokenizer.encode(text, add_special_tokens=False)
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def _pair(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
        return self._render(before), self._render([*before, {"role": "tool", "content": text}], generate=True)

    def _check_template(self) -> None:
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError("tokenizer: got one without a chat template, wanted one with")
        prefix, whole = self._pair("observation")
        special = set(self.tokenizer.all_special_ids)
        ends = [token for token in prefix if token in special]
        if not ends:
            raise ValueError("chat template: got an assistant turn without an end token, wanted one that is a special token")
        self.end_id = ends[-1]
        thought = "<think>\nt\n</think>\n\na"
        told = [("system", "s"), ("user", "u"), ("assistant", thought), ("tool", "o"), ("assistant", thought), ("tool", "p")]
        messages = [{"role": role, "content": text} for role, text in told]
        steps = [(prefix, whole)] + [(self._render(messages[:n]), self._render(messages[: n + 1], generate=True)) for n in (3, 5)]
        if any(longer[: len(ids)] != ids for ids, longer in steps):
            raise ValueError(
                "chat template: got one that rewrites earlier turns when a tool message follows, wanted one that keeps them as a prefix"
            )

    # ------------------------------------------------------------------------------------- parsing

    def parse(self, text: str) -> list[ToolCall] | ParseError:
        """The tool calls of a reply in order; see `parse`."""
        return parse(text, self.tools)


def system_text(format: str, backend: str, max_turns: int, detail: str, tools: tuple[str, ...] = TOOLS) -> str:
    """The system message."""
    if detail == "short":
        return f"Write {backend} kernels as {format}."
    calls = "\n".join(f"- {name}({', '.join(TABLE[name].parameters)})" for name in tools)
    return f"""You write fast {backend} kernels. The user gives a PyTorch module `Model`. Write a `{format}` candidate whose `ModelNew` computes the same, faster.
The workspace holds SKILL.md (rules, file layout, what is tested) and model.py (the task): both are read-only. Read SKILL.md first.
Tools, one or more calls a turn, run in order:
{calls}
Call a tool like this:
<tool_call>
<function=write>
<parameter=path>
model_new.py
</parameter>
<parameter=content>
...
</parameter>
</function>
</tool_call>
You have {max_turns} turns. Check with compile, verify and profile; end with submit."""


_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*)</function>\s*\Z", re.DOTALL)


FORMS = ("xml", "json", "llama")


def call_text(tool: str, **args: Any) -> str:
    """A tool call in the form that the models write, code unescaped. A value that is no text stands as JSON."""
    lines = ["<tool_call>", f"<function={tool}>"]
    for name, value in args.items():
        lines += [f"<parameter={name}>", (value if isinstance(value, str) else json.dumps(value)).removesuffix("\n"), "</parameter>"]
    return "\n".join([*lines, "</function>", "</tool_call>"])


def render(call: ToolCall, form: str = "xml") -> str:
    """A call as a chat template's models write it: "xml" (`call_text`), "json" (Hermes, Qwen, SmolLM2) or "llama". `parse` reads each.
    Raises ValueError for another form."""
    if form not in FORMS:
        raise ValueError(f"form: got {form!r}, wanted {' or '.join(FORMS)}")
    if form == "xml":
        return call_text(call.tool, **call.args)
    text = json.dumps({"name": call.tool, "arguments" if form == "json" else "parameters": call.args}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>" if form == "json" else text


def parse(text: str, tools: tuple[str, ...] = TOOLS) -> list[ToolCall] | ParseError:
    """Tool calls of a reply, in order. Pure. tools: names that may be called; arguments get the types of their schemas.

    Forms: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>` (Qwen3-Coder),
    `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen; SmolLM2 with a list of them), and a reply that is a JSON
    object `{"name": ..., "parameters": {...}}` and nothing else, after `<|python_tag|>` or not (Llama). Without any call, a fenced block that defines ModelNew counts as
    `write model_new.py` (the last such block when there are several). One unreadable call makes the whole reply a ParseError.
    """
    bodies = _bodies(text)
    if not bodies:
        bare = text.strip().removeprefix("<|python_tag|>").strip()
        if not (bare.startswith("{") and '"name"' in bare):
            return _from_fences(text)
        bodies = [(bare, True)]
    calls: list[ToolCall] = []
    for body, closed in bodies:
        if not closed:
            return ParseError(line="malformed: the tool call does not end; close it with </tool_call>")
        if body.lstrip().startswith(("{", "[{")):
            found = _from_json(body)
        else:
            found = _from_xml(body)
        if isinstance(found, ParseError):
            return found
        for call in found:
            checked = _checked(call, tools)
            if isinstance(checked, ParseError):
                return checked
            calls.append(checked)
    return calls


def _bodies(text: str) -> list[tuple[str, bool]]:
    """What stands between <tool_call> and </tool_call>; False where the end is missing."""
    bodies = []
    at = text.find("<tool_call>")
    while at >= 0:
        start = at + len("<tool_call>")
        following = re.compile(r"</tool_call>\s*(?=<tool_call>)").search(text, start)
        end = following.start() if following else text.rfind("</tool_call>", start)
        if end < 0:
            bodies.append((text[start:], False))
            break
        bodies.append((text[start:end], True))
        at = text.find("<tool_call>", following.end()) if following else -1
    return bodies


def _from_xml(body: str) -> list[ToolCall] | ParseError:
    found = _FUNCTION.match(body)
    if not found:
        return ParseError(line="malformed: wanted <function=NAME> ... </function> inside <tool_call>")
    name, inner = found.group(1).strip(), found.group(2)
    args: dict[str, str] = {}
    for piece in re.split(r"(?:\A|(?<=\n)|(?<=>))\s*<parameter=", inner)[1:]:
        key, mark, value = piece.partition(">")
        end = value.rfind("</parameter>")
        if not mark or end < 0:
            return ParseError(line=f"malformed: parameter {key.strip()[:20]!r} does not end; close it with </parameter>")
        args[key.strip()] = value[:end].removeprefix("\n").removesuffix("\n")
    return [ToolCall(tool=name, args=args)]


def _from_json(body: str) -> list[ToolCall] | ParseError:
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        return ParseError(line=f"malformed: the JSON of the tool call cannot be read: {error}")
    calls = []
    for one in plain if isinstance(plain, list) else [plain]:
        args = one.get("arguments", one.get("parameters", {})) if isinstance(one, dict) else None
        if isinstance(args, str):
            try:
                args = json.loads(args)
            except (ValueError, RecursionError) as error:
                return ParseError(line=f"malformed: the arguments of the tool call are no JSON (cut off?): {error}")
        if not isinstance(args, dict) or not isinstance(one.get("name"), str):
            return ParseError(line='malformed: wanted {"name": ..., "arguments": {...}}')
        calls.append(ToolCall(tool=one["name"], args=args))
    return calls


def _checked(call: ToolCall, tools: tuple[str, ...]) -> ToolCall | ParseError:
    if call.tool not in tools:
        return ParseError(line=f"malformed: no tool {call.tool[:20]!r}; tools: {', '.join(tools)}")
    args = check(call.tool, call.args)
    return ParseError(line=f"malformed: {args}") if isinstance(args, str) else ToolCall(tool=call.tool, args=args)


_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*$")


def _from_fences(text: str) -> list[ToolCall] | ParseError:
    """Fenced code as an implied write of model_new.py; see `parse`."""
    lines = text.splitlines()
    blocks: list[str] = []
    at = 0
    while at < len(lines):
        found = _FENCE.match(lines[at])
        at += 1
        if not found:
            continue
        ends = [
            i
            for i in range(at, len(lines))
            if re.fullmatch(rf"[ \t]{{0,3}}{re.escape(found.group(1)[0])}{{{len(found.group(1))},}}\s*", lines[i])
        ]
        if not ends:
            return ParseError(line="malformed: the code block does not end (truncated?)")
        end = next((i for i in ends if _parses("\n".join(lines[at:i]))), ends[0])
        blocks.append("\n".join(lines[at:end]) + "\n")
        at = end + 1
    modules = [b for b in blocks if re.search(r"^class ModelNew\b", b, re.MULTILINE)]
    if not modules:
        return ParseError(line="malformed: got no tool call; write <tool_call><function=write> ... </tool_call>")
    return [ToolCall(tool="write", args={"path": "model_new.py", "content": modules[-1]})]


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # nested without end
        return False
    return True
