"""dvc.yaml read without DVC: the stages with their command, params, deps and outs, in an order in which they can run.

DVC stays the judge of what is out of date. This reading serves the stages themselves (which params and deps are mine?), and
machines that have no DVC: `python -m stages.plan | bash -e` runs everything once, and a second time only what is unfinished.
It knows what dvc.yaml here uses: plain stages and `foreach` over a list or mapping in params.yaml.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import sys
from typing import Any

import yaml


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    """As DVC says it: rollout@r01."""
    cmd: str
    params: tuple[str, ...]
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    """Outs and metrics."""
    meta: dict[str, Any]

    @property
    def stage(self) -> str:
        """Module and section name: rollout."""
        return self.name.partition("@")[0]

    @property
    def key(self) -> str | None:
        """r01 of rollout@r01; None without one."""
        return self.name.partition("@")[2] or None


def read(root: str | pathlib.Path = ".") -> dict[str, Node]:
    """Every stage of ROOT/dvc.yaml by name, producers before consumers. Raises ValueError on what it cannot read."""
    root = pathlib.Path(root)
    try:
        pipeline = yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))
        values = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{error.filename}: got {error.strerror}, wanted a file (run this in the repository's root)") from error
    nodes = {}
    for name, entry in pipeline["stages"].items():
        if "foreach" not in entry:
            nodes[name] = _node(name, entry, {})
            continue
        items = _lookup(values, entry["foreach"].removeprefix("${").removesuffix("}"))
        pairs = items.items() if isinstance(items, dict) else ((str(item), item) for item in items)
        for key, item in pairs:
            nodes[f"{name}@{key}"] = _node(f"{name}@{key}", entry["do"], {"key": key, "item": item})
    return _ordered(nodes)


def _lookup(values: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(values, dict) or part not in values:
            raise ValueError(f"{path}: got no such key, wanted it (dvc.yaml and params.yaml name it)")
        values = values[part]
    return values


def _fill(text: str, values: dict[str, Any]) -> str:
    return re.sub(r"\$\{([\w.]+)\}", lambda match: str(_lookup(values, match[1])), text)


def _node(name: str, entry: dict[str, Any], values: dict[str, Any]) -> Node:
    def texts(field: str) -> tuple[str, ...]:
        return tuple(_fill(e if isinstance(e, str) else next(iter(e)), values) for e in entry.get(field, ()))

    return Node(
        name=name,
        cmd=_fill(entry["cmd"], values),
        params=texts("params"),
        deps=texts("deps"),
        outs=texts("outs") + texts("metrics"),
        meta=entry.get("meta", {}),
    )


def _needs(node: Node, other: Node) -> bool:
    """True when a dep of `node` is an out of `other`, lies in one, or is a folder above one."""
    return any(dep == out or dep.startswith(out + "/") or out.startswith(dep + "/") for dep in node.deps for out in other.outs)


def _ordered(nodes: dict[str, Node]) -> dict[str, Node]:
    left, done = dict(nodes), {}
    while left:
        ready = [n for n in left.values() if not any(_needs(n, o) for o in left.values() if o is not n)]
        if not ready:
            raise ValueError(f"dvc.yaml: got a circle among {', '.join(left)}, wanted a graph without one")
        done[ready[0].name] = left.pop(ready[0].name)
    return done


def main() -> None:
    """Print the command of every stage in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="print stage names instead of commands")
    arguments = parser.parse_args()
    try:
        nodes = read()
    except (ValueError, OSError) as error:
        print(f"plan: {error}", file=sys.stderr)
        sys.exit(2)
    for node in nodes.values():
        print(node.name if arguments.names else node.cmd)


if __name__ == "__main__":
    main()
