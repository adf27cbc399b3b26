"""Write params.yaml for a kind of machine: `python -m stages.preset 1gpu`. Presets: tiny (the default), 1gpu, large, h200, h200-cupy.

`tiny` is stages/presets/tiny.yaml as it stands; the others are it with the values of their own file. Comments stay.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

import yaml

from stages import params

FOLDER = pathlib.Path(__file__).parent / "presets"


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def text(name: str) -> str:
    """params.yaml for the preset. Raises ValueError for an unknown name or a key that `tiny` does not have."""
    if name not in names():
        raise ValueError(f"preset: got {name!r}, wanted {' or '.join(names())}")
    lines = (FOLDER / "tiny.yaml").read_text(encoding="utf-8").splitlines()
    if name == "tiny":
        return "\n".join(lines) + "\n"
    lines[0] = f"# The preset `{name}`: `tiny` with the values of stages/presets/{name}.yaml."
    for section, values in yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")).items():
        start = next((i for i, line in enumerate(lines) if re.match(rf"{section}:\s*(#.*)?$", line)), None)
        for key, value in values.items():
            end = next((i for i in range((start or 0) + 1, len(lines)) if lines[i] and not lines[i].startswith(" ")), len(lines))
            at = next((i for i in range((start or 0) + 1, end) if lines[i].startswith(f"  {key}:")), None) if start is not None else None
            if at is None:
                raise ValueError(f"presets/{name}.yaml: {section}.{key}: got a key that tiny.yaml does not have, wanted one of its keys")
            comment = re.search(r"\s+#.*$", lines[at])
            dumped = yaml.safe_dump(value, default_flow_style=True, width=1000).strip().removesuffix("...").strip()
            lines[at] = f"  {key}: {dumped}" + (comment[0] if comment else "")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write params.yaml, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help=" or ".join(names()))
    parser.add_argument("--file", default="params.yaml")
    arguments = parser.parse_args()
    target = pathlib.Path(arguments.file)
    try:
        written = text(arguments.name)
        partial = target.with_suffix(".partial")
        partial.write_text(written, encoding="utf-8")
        params.load(partial)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    partial.replace(target)
    print(f"{target}: preset {arguments.name}")


if __name__ == "__main__":
    main()
