"""Public collections of kernels as tasks and candidates, one JSON line a kernel; they are fetched by the user and never part of this project.

    python -m sandbox.study.collect --out published.jsonl [--cuda-l1 CLONE] [--kernelbench CLONE] [--kernelagent CLONE] [--leaderboard CLONE]

--cuda-l1      deepreinforce-ai/CUDA-L1: optimized_cuda_code/h100.json, claims over eager on the H100
--kernelbench  ScalingIntelligence/KernelBench: its prompt examples, and the three kernels of its adversarial tests
--kernelagent  Laurawly/kernelagent-artifacts: Triton kernels of L1 and L2, no claims; their `kernel_function` is wrapped in a ModelNew where Model has no weights
--leaderboard  anneouyang/KernelBenchLeaderboard: docs/assets, claims over eager of several language models

Line: key, source, problem, claim (speed-up over eager or null), claim_on, order (tasks together), task, candidate.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Iterator

from data.records import Candidate, Task
from sandbox.judge import format_of

OWN = re.compile(r"load_inline|cpp_extension|triton\.jit|RawKernel|RawModule")


def row(source: str, problem: str, name: str, task: str, kernel: str, claim: float | None, claim_on: str | None) -> dict:
    files = {"model_new.py": kernel}
    return {
        "key": f"{source}/{problem}/{name}", "source": source, "problem": problem, "claim": claim, "claim_on": claim_on, "order": f"{problem}/{len(task)}",
        "task": Task(source=task, origin="user").to_dict(), "candidate": Candidate(format=format_of(files), files=files).to_dict(),
    }  # fmt: skip


def model_new(text: str) -> str:
    """The kernel's module under the name that the judge wants."""
    return text if re.search(r"^class ModelNew\b", text, re.M) else re.sub(r"\bModel\b", "ModelNew", text)


def cuda_l1(folder: pathlib.Path, everything: bool) -> Iterator[dict]:
    for line in (folder / "optimized_cuda_code/h100.json").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        kernel = entry["custom_code"]
        if kernel and (everything or OWN.search(kernel)):
            problem = f"{entry['level_id']}/{entry['task_id']}"
            yield row("CUDA-L1", problem, "h100", entry["ref_code"], model_new(kernel), entry["score_default"], "H100")


def kernelbench(folder: pathlib.Path, everything: bool) -> Iterator[dict]:
    prompts = folder / "src/kernelbench/prompts"
    for name in ("ex_0", "ex_1", "ex_2", "ex_add", "ex_tiled_matmul", "ex_fuse_gelu", "ex_mnist2", "ex_flash_attn"):
        for kernel in sorted([*prompts.glob(f"model_new_{name}.py"), *prompts.glob(f"model_new_{name}_triton.py"), *prompts.glob(f"few_shot/model_new_{name}.py")]):
            task = kernel.parent / f"model_{name}.py"
            if task.exists():
                yield row("KernelBench examples", name, kernel.stem, task.read_text(), kernel.read_text(), None, None)
    problem = next((folder / "KernelBench/level1").glob("1_*.py")).read_text()
    for kernel in sorted((folder / "src/kernelbench/unit_tests/test_kernels").glob("*.py")):
        yield row("KernelBench adversarial tests", "1/1", kernel.stem, problem, kernel.read_text(), None, None)


def kernelagent(folder: pathlib.Path, everything: bool) -> Iterator[dict]:
    for path in sorted(folder.glob("L*/*/kernel_code.py")):
        task, kernel = (path.parent / "original.py").read_text(), path.read_text()
        level, number = path.parent.parent.name[1:], path.parent.name.partition("_")[0]
        if re.search(r"nn\.(Parameter|Linear|Conv|BatchNorm|LayerNorm|GroupNorm|InstanceNorm)|register_buffer", task):
            continue  # its function takes weights in an order of its own
        init = re.search(r"def get_init_inputs\(\):\s*return \[\s*\]", task)
        if init and "kernel_function" in kernel:
            wrapped = kernel + "\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, *inputs):\n        return kernel_function(*inputs)\n"
            yield row("KernelAgent", f"{level}/{number}", path.parent.name, task, wrapped, None, None)


def leaderboard(folder: pathlib.Path, everything: bool) -> Iterator[dict]:
    assets = folder / "docs/assets"
    for title, answers in json.loads((assets / "data.json").read_text()).items():
        found = re.match(r"Level (\d+): (\d+)_", title)
        if not found:
            continue
        task = (assets / f"problems/l{found[1]}_p{found[2]}.py").read_text()
        for answer in answers if everything else answers[:1]:
            kernel = assets / f"solutions/{answer['file']}.py"
            if kernel.exists() and OWN.search(kernel.read_text()):
                yield row("KernelBench leaderboard", f"{found[1]}/{found[2]}", answer["display_name"], task, kernel.read_text(), answer["torch_speedup"], "L40S")


READERS = {"cuda_l1": cuda_l1, "kernelbench": kernelbench, "kernelagent": kernelagent, "leaderboard": leaderboard}


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m sandbox.study.collect", description=__doc__.splitlines()[0])
    options.add_argument("--out", required=True, metavar="FILE")
    options.add_argument("--all", action="store_true", help="also modules without a kernel of their own, and every answer of the leaderboard")
    for name in READERS:
        options.add_argument(f"--{name.replace('_', '-')}", dest=name, default=None, metavar="CLONE", type=pathlib.Path)
    chosen = options.parse_args(arguments)
    rows: dict[str, dict] = {}
    for name, reader in READERS.items():
        folder = getattr(chosen, name)
        if folder is None:
            continue
        try:
            rows |= {r["key"]: r for r in reader(folder, chosen.all)}
        except (OSError, KeyError, StopIteration, json.JSONDecodeError) as error:
            print(f"sandbox.study.collect: --{name.replace('_', '-')}: got {folder} ({type(error).__name__}: {error}), wanted a clone as --help names it", file=sys.stderr)
            return 2
    if not rows:
        print("sandbox.study.collect: got no kernel, wanted at least one of the collections (see --help)", file=sys.stderr)
        return 2
    pathlib.Path(chosen.out).write_text("".join(json.dumps(r) + "\n" for r in rows.values()), encoding="utf-8")
    print(f"{len(rows)} kernels in {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
