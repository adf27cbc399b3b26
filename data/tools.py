"""The agent's tools: one table that the prompt shows, the parser and the workspace check, and endpoints get as functions.

What each does is sandbox/workspace.py; a `Tool` here says how it is called and what bounds it.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from data.records import Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tool(Record):
    """One tool. parameters: name -> JSON schema of its value."""

    name: str
    description: str
    parameters: dict[str, dict[str, Any]]
    optional: tuple[str, ...] = ()
    informs: bool = False
    """True for a tool that changes nothing: not run in the last turn, whose observation nobody reads."""

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(name for name in self.parameters if name not in self.optional)

    def schema(self) -> dict[str, Any]:
        """The tool as a function of the chat completions API."""
        shape = {"type": "object", "properties": self.parameters, "required": list(self.required)}
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": shape}}


_TEXT = {"type": "string"}
_PATH = {"type": "string", "description": "relative to the workspace"}
_EDIT = {"type": "object", "properties": {"old": _TEXT, "new": _TEXT}, "required": ["old", "new"]}
BASH_S = 120
"""Seconds that a bash call may ask for at most; without a wish it gets a quarter."""

TABLE = {
    tool.name: tool
    for tool in (
        Tool(
            name="write",
            description="Write a text file of the workspace, replacing what was there.",
            parameters={"path": _TEXT, "content": _TEXT},
        ),
        Tool(name="read", description="Read a text file of the workspace.", parameters={"path": _TEXT}, informs=True),
        Tool(name="compile", description="Compile what stands in the workspace.", parameters={}, informs=True),
        Tool(
            name="verify",
            description="Compare the outputs of what stands in the workspace with those of the task.",
            parameters={},
            informs=True,
        ),
        Tool(
            name="profile",
            description="Measure what stands in the workspace against eager PyTorch and torch.compile.",
            parameters={},
            informs=True,
        ),
        Tool(name="submit", description="Hand in what stands in the workspace and end the episode.", parameters={}),
        Tool(
            name="bash",
            description=f"Run a bash command in the workspace: no network, at most {BASH_S} s; long output loses its middle.",
            parameters={
                "command": _TEXT,
                "seconds": {"type": "integer", "description": f"time limit, 1 to {BASH_S}; default {BASH_S // 4}"},
                "background": {"type": "boolean", "description": "go on at once; read it with `output`, end it with `kill`"},
            },
            optional=("seconds", "background"),
        ),
        Tool(
            name="output",
            description="What a background command wrote since it was last asked.",
            parameters={"job": {"type": "integer"}},
            informs=True,
        ),
        Tool(name="kill", description="End a background command.", parameters={"job": {"type": "integer"}}),
        Tool(
            name="edit",
            description="Replace a text that stands exactly once in a file.",
            parameters={"path": _PATH, "old": _TEXT, "new": _TEXT},
        ),
        Tool(
            name="multi_edit",
            description="Several edits of one file, in order; all or none.",
            parameters={"path": _PATH, "edits": {"type": "array", "items": _EDIT}},
        ),
        Tool(
            name="glob",
            description="Names of the workspace's files that match a pattern such as kernels/*.cu or **/*.py.",
            parameters={"pattern": _TEXT},
            informs=True,
        ),
        Tool(
            name="grep",
            description="Lines of the workspace's files that hold a regular expression, as file:line: text.",
            parameters={"pattern": _TEXT, "path": _PATH},
            optional=("path",),
            informs=True,
        ),
        Tool(name="todo", description="Keep a list of what is to do; it replaces the list before.", parameters={"items": _TEXT}),
    )
}
BASIC = ("write", "read", "compile", "verify", "profile", "submit")
"""The tools of models too small for a shell."""
ALL = tuple(TABLE)
SETS = {"basic": BASIC, "all": ALL}

_TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def check(name: str, args: dict[str, Any]) -> dict[str, Any] | str:
    """The arguments of a call, each of its schema's type, or one line that says what is wrong.

    Text stands for a number, a truth value or a list where the schema wants one: some call formats carry text alone.
    """
    tool = TABLE[name]
    unknown = [key for key in args if key not in tool.parameters]
    missing = [key for key in tool.required if key not in args]
    if unknown or missing:
        return f"{name} wants {wanted(name)}, got {', '.join(args)[:40] or 'none'}"
    found = {}
    for key, value in args.items():
        kind = tool.parameters[key]["type"]
        if isinstance(value, str) and kind != "string":
            try:
                value = json.loads(value.strip().lower() if kind == "boolean" else value)
            except (ValueError, RecursionError):
                return f"{name}: {key} wants {kind}, got {value[:40]!r}"
        if not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
            # For tools of text alone the names say it all
            plain = all(schema["type"] == "string" for schema in tool.parameters.values())
            got = f"got {', '.join(args)[:40]}" if plain else f"got {type(value).__name__}"
            return f"{name} wants {wanted(name)}, {got}" if plain else f"{name}: {key} wants {kind}, {got}"
        found[key] = value
    for edit in found.get("edits", ()):
        if not isinstance(edit, dict) or set(edit) != {"old", "new"} or not all(isinstance(text, str) for text in edit.values()):
            return f"{name}: each of edits wants old and new, both text"
    return found


def wanted(name: str) -> str:
    """The parameters of a tool as a line names them."""
    tool = TABLE[name]
    return ", ".join(f"{key} (optional)" if key in tool.optional else key for key in tool.parameters) or "no parameters"
