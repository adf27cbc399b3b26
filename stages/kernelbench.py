"""Judge the generations of a KernelBench run with this project's judge, in that project's own layout.

usage:
    python -m stages.kernelbench run_name=NAME level=1 problems=CLONE [runs=runs] [backend=cuda] [policy=mixed] [precision=fp32] [subset=1-50]

Reads runs/NAME/level_L_problem_P_sample_S_kernel.py. Writes beside them verdicts.jsonl (a line a verdict; a stopped run goes on from it),
eval_results.json and baseline_{eager,compile}.json as KernelBench's analysis reads them (eval_results_dir=, baseline_file=), and
judged_level_L.json and .md with our figures: fast_p with strict >, pass@k, geometric means, 95 % intervals by bootstrap over problems.
No stage of the pipeline. Exit 2: bad arguments, no such run, or kernels of problems that the exam does not have (the others are judged).
Exit 3: some could not be judged for a reason of ours; the next start tries them again.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import math
import os
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_type_hints

from data.journal import append_lines, read_lines
from data.records import Candidate, SandboxError, Task, Verdict

NAME = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
RESAMPLES = 2000
BASELINES = ("eager", "compile")
NOT_COMPILED = ("format_error", "compile_error", "compile_timeout")
IGNORED = {
    "dataset_src", "dataset_name", "gpu_arch", "num_correct_trials", "num_perf_trials", "timeout", "measure_performance", "verbose", "num_gpu_devices", "num_cpu_workers", "build_cache",
    "kernel_eval_build_dir", "num_samples_per_problem", "pass_at_k_values", "eval_mode", "timing_method",
}  # fmt: skip
"""Arguments of KernelBench's scripts that mean nothing to this judge: told, not refused."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    run_name: str
    level: int
    problems: str
    """A clone of KernelBench, or a folder with level1/1_name.py and so on."""
    runs: str = "runs"
    backend: Literal["cpp", "cuda"] = "cuda"
    policy: Literal["own_kernels_only", "libraries_allowed", "mixed"] = "mixed"
    """mixed: what KernelBench itself asks, any code that is right."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    subset: str = ""
    """FIRST-LAST, problem numbers."""
    build_s: float = 180.0
    call_s: float = 20.0
    total_s: float = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    problem: int
    sample: int
    candidate: Candidate


def options_of(arguments: Sequence[str]) -> Options:
    """key=value arguments. Raises ValueError."""
    fields, hints, given = {f.name: f for f in dataclasses.fields(Options)}, get_type_hints(Options), {}
    for argument in arguments:
        key, equals, value = argument.removeprefix("--").partition("=")
        if key in IGNORED:
            print(f"stages.kernelbench: {key} has no meaning for this judge", file=sys.stderr)
            continue
        if not equals or key not in fields:
            raise ValueError(f"got {argument!r}, wanted key=value with one of {', '.join(fields)}")
        allowed = get_args(hints[key])
        if allowed and value not in allowed:
            raise ValueError(f"{key}: got {value!r}, wanted one of {', '.join(allowed)}")
        try:
            given[key] = value if allowed else hints[key](value)
        except ValueError:
            raise ValueError(f"{key}: got {value!r}, wanted {hints[key].__name__}") from None
    missing = [name for name, f in fields.items() if f.default is dataclasses.MISSING and name not in given]
    if missing:
        raise ValueError(f"got no {', '.join(missing)}, wanted {'=..., '.join(missing)}=...")
    if given.get("subset") and not re.fullmatch(r"\d+-\d+", given["subset"]):
        raise ValueError(f"subset: got {given['subset']!r}, wanted FIRST-LAST, for example 1-50")
    return Options(**given)


def kernels_of(folder: pathlib.Path, level: int, numbers: range | None) -> list[Kernel]:
    """The kernels of a run, in order of problem and sample. Raises ValueError when there are none."""
    from sandbox.judge import format_of

    found = []
    for path in folder.glob("level_*_kernel.py") if folder.is_dir() else ():
        match = NAME.fullmatch(path.name)
        if match and int(match[1]) == level and (numbers is None or int(match[2]) in numbers):
            files = {"model_new.py": path.read_text(encoding="utf-8", errors="replace")}
            found.append(Kernel(problem=int(match[2]), sample=int(match[3]), candidate=Candidate(format=format_of(files), files=files)))
    if not found:
        raise ValueError(f"{folder}: got no kernel of level {level}, wanted files like level_{level}_problem_1_sample_0_kernel.py")
    return sorted(found, key=lambda k: (k.problem, k.sample))


async def judge(options: Options, tasks: dict[int, Task], todo: list[Kernel], journal: pathlib.Path) -> list[str]:
    """Judge what has no line in the journal yet, problem after problem. Returns what could not be judged, in words."""
    from sandbox.judge import Limits
    from sandbox.pool import Pool

    limits = Limits(build_s=options.build_s, call_s=options.call_s, total_s=options.total_s)
    groups: dict[int, list[Kernel]] = collections.defaultdict(list)
    for kernel in todo:
        groups[kernel.problem].append(kernel)
    lost, done = [], 0
    async with Pool(backend=options.backend, policy=options.policy, precision=options.precision, limits=limits) as pool:

        async def one(kernel: Kernel) -> None:
            nonlocal done
            try:
                verdict = await pool.judge(tasks[kernel.problem], kernel.candidate, fresh=True)
            except SandboxError as error:
                lost.append(f"problem {kernel.problem} sample {kernel.sample}: {error}")
            else:
                append_lines(journal, [{**_key(options, kernel), "verdict": verdict.to_dict()}])
            done += 1
            print(f"{done}/{len(todo)} judged", end="\r", file=sys.stderr)

        # A few problems under way at once keep every slot busy, and the samples of one find it ready
        places = asyncio.Semaphore(2 * len(pool.slots))

        async def group(kernels: list[Kernel]) -> None:
            async with places:
                await asyncio.gather(*map(one, kernels))

        await asyncio.gather(*map(group, groups.values()))
    return lost


def _key(options: Options, kernel: Kernel) -> dict[str, Any]:
    """What a verdict depends on."""
    asked = {name: getattr(options, name) for name in ("level", "backend", "policy", "precision")}
    return asked | {"problem": kernel.problem, "sample": kernel.sample, "candidate": kernel.candidate.id}


def read_verdicts(options: Options, kernels: list[Kernel], journal: pathlib.Path) -> dict[tuple[int, int], Verdict]:
    """(problem, sample) -> verdict of the kernels as they stand; the last line counts."""
    wanted = {tuple(_key(options, k).values()): (k.problem, k.sample) for k in kernels}
    names, found = list(_key(options, kernels[0])), {}
    for row in read_lines(journal):
        place = wanted.get(tuple(row.get(name) for name in names))
        if place is not None:
            found[place] = Verdict.from_dict(row["verdict"])
    return found


# --------------------------------------------------------------------------------------- figures


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that one of k samples is right, without bias, from `correct` of `samples` (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def figures(verdicts: dict[tuple[int, int], Verdict], problems: Sequence[int]) -> dict[str, Any]:
    """Figures over `problems`. A problem without a kernel counts as failed; invalid and degenerate ones are counted apart and left out.

    fast_p: share of problems whose sample 0 is correct and whose speed-up (median) is above p, strictly. geometric mean: over correct,
    timed samples 0. Each {"value", "low", "high"}, 95 % by bootstrap over problems.
    """
    import numpy

    first = {problem: verdicts.get((problem, 0)) for problem in problems}
    invalid = {p: v for p, v in first.items() if v is not None and v.status == "task_invalid"}
    counted = [p for p in problems if p not in invalid]
    found: dict[str, Any] = {
        "problems": len(problems),
        "with_kernel": sum(v is not None for v in first.values()),
        "task_invalid": sorted(p for p, v in invalid.items() if "degenerate" not in (v.reason or "")),
        "degenerate": sorted(p for p, v in invalid.items() if "degenerate" in (v.reason or "")),
        "statuses": dict(collections.Counter(str(v.status) for v in first.values() if v is not None).most_common()),
        "rejected": dict(collections.Counter(v.rule or "" for v in first.values() if v is not None and v.status == "rejected")),
    }
    if not counted:
        return found
    draws = numpy.random.default_rng(0).integers(0, len(counted), (RESAMPLES, len(counted)))

    def share(hits: list[bool]) -> dict[str, float]:
        means = numpy.asarray(hits, dtype=float)[draws].mean(1)
        return {"value": sum(hits) / len(hits), "low": float(numpy.quantile(means, 0.025)), "high": float(numpy.quantile(means, 0.975))}

    right = [first[p] if first[p] is not None and first[p].correct else None for p in counted]
    found["compiled"] = share([first[p] is not None and str(first[p].status) not in NOT_COMPILED for p in counted])
    found["correct"] = share([v is not None for v in right])
    for base in BASELINES:
        ratio = [v.speedup[base][1] if v is not None and v.speedup and base in v.speedup else None for v in right]
        found[f"fast_p_{base}"] = {
            # Correct and slower than can be measured is correct all the same: fast_0
            f"{p:g}": share([v is not None and (p == 0.0 or (r is not None and r > p)) for v, r in zip(right, ratio, strict=True)])
            for p in THRESHOLDS
        }
        found[f"faster_{base}"] = share([v is not None and v.faster_than(base) for v in right])
        logs = numpy.asarray([math.log(r) if r else math.nan for r in ratio])
        timed = int(numpy.isfinite(logs).sum())
        found[f"timed_{base}"] = timed
        if timed:
            sums, counts = numpy.nansum(logs[draws], 1), numpy.isfinite(logs[draws]).sum(1)
            low, high = numpy.quantile(sums[counts > 0] / counts[counts > 0], (0.025, 0.975))
            found[f"geometric_mean_{base}"] = {"value": math.exp(numpy.nanmean(logs)), "low": math.exp(low), "high": math.exp(high)}
    found["pass_at_k"] = {}
    samples = {p: [v for (problem, _), v in verdicts.items() if problem == p] for p in counted}
    for k in (1, 2, 4, 8, 16):
        able = [vs for vs in samples.values() if len(vs) >= k]
        if able:
            mean = sum(pass_at_k(len(vs), sum(v.correct for v in vs), k) for vs in able) / len(able)
            found["pass_at_k"][str(k)] = {"value": mean, "problems": len(able)}
    return found


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""

    def shown(value: dict[str, float] | None, percent: bool = True) -> str:
        if value is None:
            return "-"
        form = (lambda x: f"{x:.1%}") if percent else (lambda x: f"{x:.2f}x")
        return f"{form(value['value'])} ({form(value['low'])} to {form(value['high'])})"

    left_out = len(found["task_invalid"]) + len(found["degenerate"])
    lines = [
        f"{found['problems']} problems, {found['with_kernel']} with a kernel; left out: {len(found['degenerate'])} degenerate, {len(found['task_invalid'])} invalid here.",
        "Statuses of sample 0: " + (", ".join(f"{count} {name}" for name, count in found["statuses"].items()) or "none"),
    ]
    if found["rejected"]:
        lines.append("Rejected by rule: " + ", ".join(f"{count} {rule}" for rule, count in found["rejected"].items()))
    if left_out < found["problems"]:
        lines += ["", "| | against eager | against torch.compile |", "| --- | --- | --- |"]
        lines += [f"| fast_{p:g} | " + " | ".join(shown(found[f"fast_p_{base}"][f"{p:g}"]) for base in BASELINES) + " |" for p in THRESHOLDS]
        lines.append("| faster (low end above 1) | " + " | ".join(shown(found[f"faster_{base}"]) for base in BASELINES) + " |")
        lines.append("| geometric mean, correct and timed | " + " | ".join(shown(found.get(f"geometric_mean_{base}"), False) for base in BASELINES) + " |")
        lines += ["", f"Compiled {shown(found['compiled'])}, correct {shown(found['correct'])}."]
        lines += [f"pass@{k}: {value['value']:.1%} over {value['problems']} problems." for k, value in found["pass_at_k"].items()]
    return "\n".join(lines)


# --------------------------------------------------------------------------------------- KernelBench's files


def theirs(verdict: Verdict, sample: int) -> dict[str, Any]:
    """A verdict as an entry of eval_results.json. runtime: milliseconds, device time where it is known, -1 without."""
    ms = ((verdict.device_ms or verdict.times_ms) or {}).get("candidate") if verdict.correct else None
    metadata = {"status": str(verdict.status), "rule": verdict.rule, "reason": verdict.reason, "flags": list(verdict.flags), "speedup": verdict.speedup}
    return {
        "sample_id": sample,
        "compiled": str(verdict.status) not in NOT_COMPILED,
        "correctness": verdict.correct,
        "metadata": metadata,
        "runtime": ms if ms is not None else -1.0,
        "runtime_stats": {"mean": ms} if ms is not None else {},
    }


def write(options: Options, folder: pathlib.Path, names: dict[int, str], verdicts: dict[tuple[int, int], Verdict], found: dict[str, Any]) -> None:
    """Every file, each replaced as a whole."""
    entries: dict[str, list] = {}
    for (problem, sample), verdict in sorted(verdicts.items()):
        entries.setdefault(str(problem), []).append(theirs(verdict, sample))
    _replace(folder / "eval_results.json", json.dumps(entries, indent=1))
    for base in BASELINES:
        means: dict[str, list[float]] = collections.defaultdict(list)
        for (problem, _), verdict in verdicts.items():
            ms = ((verdict.device_ms or verdict.times_ms) or {}).get(base)
            if verdict.correct and ms is not None:
                means[names[problem]].append(ms)
        # KernelBench's analysis leaves out problems without a baseline: those nobody solved get a filler, which no figure of it reads
        filler = {name: {"mean": 1.0, "filler": True} for name in names.values()}
        level = filler | {name: {"mean": sum(values) / len(values)} for name, values in means.items()}
        _replace(folder / f"baseline_{base}.json", json.dumps({f"level{options.level}": level}, indent=1))
    body = {"options": dataclasses.asdict(options), "figures": found}
    _replace(folder / f"judged_level_{options.level}.json", json.dumps(body, indent=1))
    _replace(folder / f"judged_level_{options.level}.md", f"# {options.run_name}, level {options.level}, policy {options.policy}\n\n{table(found)}\n")


def _replace(path: pathlib.Path, text: str) -> None:
    fresh = path.with_suffix(f".tmp-{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] in ("-h", "--help"):
        print(__doc__.rstrip())
        return 0 if given else 2
    try:
        return run(options_of(given))
    except (ValueError, OSError) as error:
        print(f"stages.kernelbench: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except SandboxError as error:
        print(f"stages.kernelbench: {error}", file=sys.stderr)
        return 3


def run(options: Options) -> int:
    """Judge, write, print the table. Raises ValueError, OSError, SandboxError."""
    from data import kernelbench

    folder = pathlib.Path(options.runs) / options.run_name
    first, _, last = options.subset.partition("-")
    numbers = range(int(first), int(last) + 1) if options.subset else None
    kernels = kernels_of(folder, options.level, numbers)
    loaded = kernelbench.load(options.problems, levels=(options.level,), problems=numbers)
    tasks = {int(task.origin.rpartition("/")[2]): task for task in loaded}
    strangers = sorted({k.problem for k in kernels} - set(tasks))
    kernels = [k for k in kernels if k.problem in tasks]
    if not kernels:
        raise ValueError(f"{options.problems}: got none of the problems {strangers} of the run, wanted at least one")
    journal = folder / "verdicts.jsonl"
    known = read_verdicts(options, kernels, journal)
    todo = [k for k in kernels if (k.problem, k.sample) not in known]
    lost = asyncio.run(judge(options, tasks, todo, journal)) if todo else []
    verdicts = read_verdicts(options, kernels, journal)
    found = figures(verdicts, sorted(tasks))
    write(options, folder, kernelbench.names(options.problems, options.level), verdicts, found)
    print(table(found))
    for line in lost:
        print(f"not judged: {line}", file=sys.stderr)
    if strangers:
        print(f"stages.kernelbench: {options.problems}: got no problem {', '.join(map(str, strangers))} of level {options.level}, wanted those of the run", file=sys.stderr)
    return 3 if lost else 2 if strangers else 0


if __name__ == "__main__":
    sys.exit(main())
