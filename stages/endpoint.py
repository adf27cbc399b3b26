"""Let any OpenAI-compatible server play tasks as the policy plays them: to compare it, or to collect episodes that a student imitates.

    OPENAI_API_KEY=... python -m stages.endpoint --address https://HOST/v1 --model NAME --prices 2 10

No stage of the pipeline: it costs money, and what it writes is in no dvc.yaml. judge, machine and episode come from params.yaml.
Writes OUT/trajectories (as every stage that plays), OUT/results.json (as `evaluate`, with tokens and cost) and OUT/usage.jsonl, a line an
answer, those of lost episodes included. Stopped, it goes on where it was; episodes that the endpoint lost are played again by the next start.
Exit 2: a missing key, a refused key or model, bad options. Exit 3: nothing could be judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import socket
import sys
import types
import urllib.parse
from typing import Any

from data.journal import append_lines, read_lines
from data.records import SandboxError, content_id
from stages import params, play, score, stage


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.endpoint", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True, help="up to /v1")
    parser.add_argument("--model", required=True, help="as the server calls it")
    parser.add_argument("--tasks", default="artifacts/tasks/selected/tasks.parquet", help="Parquet file of tasks")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"))
    parser.add_argument("--count", type=int, default=0, help="tasks of the split; 0 = all")
    parser.add_argument("--samples", type=int, default=1, help="episodes a task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, help="default: episode.turns")
    parser.add_argument("--new-tokens", type=int, default=8192, help="most tokens of an answer")
    parser.add_argument("--context", type=int, default=131072, help="most tokens of a conversation")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--options", type=json.loads, default={}, help="JSON object: fields added to every request, null takes one out")
    parser.add_argument("--key-from", default="OPENAI_API_KEY", help="environment variable with the key; '' = the server wants none")
    parser.add_argument(
        "--prices", type=float, nargs=2, default=(0.0, 0.0), metavar=("IN", "OUT"), help="of a million prompt, completion tokens"
    )
    parser.add_argument("--in-flight", type=int, default=16, help="episodes at once")
    parser.add_argument("--per-minute", type=float, default=0.0, help="most requests a minute; 0 = no limit")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of a request")
    parser.add_argument(
        "--student", help="checkpoint folder whose tokenizer and opening the episodes are kept in, so that sft can learn them"
    )
    parser.add_argument("--out", help="default: artifacts/endpoint/MODEL")
    options = parser.parse_args(arguments)
    name = re.sub(r"[^\w.-]+", "-", options.model)
    try:
        stage._die_with_parent()
        print(run(options, name))
        return 0
    except stage.Stopped:
        print(f"endpoint {name}: stopped; the next start goes on from there", file=sys.stderr)
        return 143
    except (ValueError, SandboxError, OSError) as error:
        print(f"endpoint {name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 3 if isinstance(error, SandboxError) else 2


def run(options: argparse.Namespace, name: str) -> str:
    """Play, publish, and the line that says what came out. Raises ValueError, OSError (the user's), SandboxError (ours)."""
    from data.store import TrajectoryStore, read_tasks, read_trajectories
    from data.tools import SETS
    from policy.endpoint import ChatPlayer

    if not isinstance(options.options, dict):
        raise ValueError(f"--options: got {options.options!r}, wanted a JSON object")
    for option in ("samples", "new_tokens", "context", "in_flight"):
        if getattr(options, option) < 1:
            raise ValueError(f"--{option.replace('_', '-')}: got {getattr(options, option)}, wanted 1 or more")
    checked = params.load()
    tokenizer, view, student = None, "source", None
    if options.student:
        from policy import model

        student, tokenizer, view = model.read_record(options.student).id, model.load_tokenizer(options.student), checked.episode.view
    changes = {"new_tokens": options.new_tokens, "context": options.context, "view": view, "turns": options.turns or checked.episode.turns}
    episode = dataclasses.replace(checked.episode, **changes)
    chat = ChatPlayer(
        options.address, options.model, format=episode.format, backend=checked.judge.backend, max_turns=episode.turns, context=options.context,
        temperature=options.temperature, prices=tuple(options.prices), options=options.options, key_from=options.key_from,
        timeout_s=options.timeout_s, in_flight=options.in_flight, per_minute=options.per_minute, tools=SETS[episode.tools],
    )  # fmt: skip
    tasks = play.draw(read_tasks(options.tasks, options.split), options.count, options.seed)
    if not tasks:
        raise ValueError(f"{options.tasks}: got no task of the split {options.split}, wanted some")
    # Neither count nor samples: more of them go on from what is there
    same = content_id(
        options.address,
        options.model,
        options.temperature,
        options.options,
        options.seed,
        student,
        dataclasses.asdict(episode),
        dataclasses.asdict(checked.judge),
    )
    home = pathlib.Path("work") / f"endpoint-{name}"
    values = types.SimpleNamespace(machine=checked.machine, judge=checked.judge, episode=episode)
    job = stage.Job(name=f"endpoint@{name}", key=None, params=values, work=home / same, root=pathlib.Path())
    job.work.mkdir(parents=True, exist_ok=True)
    lock = stage._locked(home / ".lock", job.name)
    try:
        store, checkpoint, usage = TrajectoryStore(job.work / "live", 0), f"endpoint:{options.model}", job.work / "usage.jsonl"
        for earlier in play.so_far(job, store):
            chat.answered += len(earlier.turns)
            if earlier.stop == "infra_error":
                (store.folder / f"{earlier.id}.parquet").unlink()
        samples = {play.seed_of(options.seed, task.id, sample): sample for task in tasks for sample in range(options.samples)}

        def player(task, seed):
            generate, key = chat.episode(task), content_id(task.id, checkpoint, "endpoint", 0, samples[seed])

            async def told(*arguments: Any, **keywords: Any):
                answer = await generate(*arguments, **keywords)
                counts = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens, "cost": answer.cost}
                if answer.prompt_tokens != 0:  # 0: its context is used up, and nobody was asked
                    append_lines(usage, [{"trajectory": key, "task": task.id, "sample": samples[seed], **counts}])
                return answer

            return told

        # scripted: what another machine samples takes nothing from the judge, what this one does would falsify its times
        play.play_all(
            job,
            tasks,
            player,
            store=store,
            checkpoint=checkpoint,
            tokenizer=tokenizer,
            scripted=not local(options.address),
            samples=options.samples,
            seed=options.seed,
            gather=options.in_flight,
        )
        out = pathlib.Path(options.out or f"artifacts/endpoint/{name}")
        out.mkdir(parents=True, exist_ok=True)
        store.publish(out / "trajectories")
    finally:
        lock.close()
        chat.close()
    if usage.exists():
        shutil.copyfile(usage, out / "usage.jsonl")
    every, lines = {task.id: task for task in read_tasks(options.tasks, options.split)}, read_lines(usage)
    played = [t for t in read_trajectories(out / "trajectories") if t.task in every]
    body = score.results(name, -1, None, list(every.values()), played)
    body |= {"address": options.address, "model": options.model, "usage": spent(lines)}
    for row in body["episodes"]:
        row["usage"] = spent([line for line in lines if line["trajectory"] == row["trajectory"]])
    score.write(out, body)
    used = body["usage"]
    cost = "cost unknown" if used["cost"] is None else f"cost {used['cost']:.4g}"
    return f"{name}: {score.headline(body['figures'])}; {used['answers']} answers, {used['prompt_tokens']} prompt and {used['completion_tokens']} completion tokens, {cost}; {out}"


def local(address: str) -> bool:
    """True where the server shares this machine, and so cores or GPU, with the judge."""
    return urllib.parse.urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname().lower())


def spent(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over lines of usage.jsonl; null where the endpoint did not tell every count."""
    sums = {name: [line[name] for line in lines] for name in ("prompt_tokens", "completion_tokens", "cost")}
    return {"answers": len(lines)} | {name: None if None in values else sum(values) for name, values in sums.items()}


if __name__ == "__main__":
    sys.exit(main())
