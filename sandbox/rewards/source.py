"""Where verdicts come from: a service (`Service`) or slots of this machine (`Local`), behind one call.

    source = Service("http://judge:8080", token_file="token")      # or Local(backend="cpp")
    found = source.judge([(task, candidate), ...])                  # a Verdict each, or the SandboxError that kept it from one

`judge` blocks and may be called from any thread; `judge_async` awaits the same from any event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import secrets
import threading
import time
import urllib.parse
from collections.abc import Coroutine, Iterator
from typing import Any

from data.records import Candidate, SandboxError, Task, Verdict
from sandbox.judge import format_of, task_from_source

Pairs = list[tuple[Task, Candidate]]
Found = list[Verdict | SandboxError]
CHUNK = 256
"""Items a request: a quarter of what a service accepts by default."""
SILENCE_S = 60.0
"""A stream of the service that says nothing for so long is broken: it beats every 15 seconds."""
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\n`]*)\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"(?:[\w-]+/)*[\w-]+\.\w+")


def as_task(told: Task | dict[str, Any] | str) -> Task:
    """A task, its plain form (`Task.to_dict`), that as JSON, or just its source. Raises ValueError."""
    if isinstance(told, Task):
        return told
    if isinstance(told, str) and not told.lstrip().startswith("{"):
        return task_from_source(told)
    try:
        plain = json.loads(told) if isinstance(told, str) else told
        return Task.from_dict({"origin": "user"} | {name: value for name, value in plain.items() if value is not None})
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"task: got {str(told)[:60]!r} ({error}), wanted its source or a Task as JSON") from None


def as_candidate(completion: str | list[dict[str, Any]]) -> Candidate:
    """The candidate in a model's reply, text or messages (the last one counts).

    A fenced block whose info string ends with a path (```cpp kernels/scale.cpp) is that file; of the others the last one with a class
    ModelNew is model_new.py. Without any, the whole reply is, and the judge says what is wrong with it: a reply always gets a verdict.
    """
    if not isinstance(completion, str):
        content = completion[-1].get("content") if completion else None
        completion = content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or ())
    # A lone surrogate is in no file
    text, files = completion.encode("utf-8", "replace").decode(), {}
    for _, info, body in _FENCE.findall(text):
        last = info.split()[-1] if info.split() else ""
        if _PATH.fullmatch(last):
            files[last] = body
        elif re.search(r"^class ModelNew\b", body, re.MULTILINE):
            files["model_new.py"] = body
    files = files or {"model_new.py": text}
    return Candidate(format=format_of(files), files=files)


class Service:
    """Verdicts of `cuda-judge serve` at `address`.

    token_file: holds the service's token. options: policy, precision, track of every item. patience_s: how long nothing may be heard
    of the service (it restarts, its queue is full) before what has no verdict yet gets a SandboxError.
    """

    def __init__(self, address: str, *, token_file: str | os.PathLike | None = None, patience_s: float = 300.0, **options: str):
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"service: got {address!r}, wanted http://HOST:PORT")
        self.parts, self.options, self.patience_s = parts, options, patience_s
        self.headers = {"Content-Type": "application/json"}
        if token_file is not None:
            self.headers["Authorization"] = f"Bearer {pathlib.Path(token_file).read_text().strip()}"
        # Threads of our own: waiting for a verdict must not hold up what else a trainer's event loop does in its threads
        self.threads = concurrent.futures.ThreadPoolExecutor(64, "judge")

    def judge(self, pairs: Pairs) -> Found:
        """In the order of `pairs`. Raises ValueError where the service refuses the request itself (a wrong token, an unknown option)."""
        return [found for at in range(0, len(pairs), CHUNK) for found in self._batch(pairs[at : at + CHUNK])]

    async def judge_async(self, pairs: Pairs) -> Found:
        """As `judge`, from any event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, self.judge, pairs)

    def _batch(self, pairs: Pairs) -> Found:
        items = [{"task": t.to_dict(), "candidate": {"format": c.format, "files": c.files}, "options": self.options} for t, c in pairs]
        body, path = json.dumps({"items": items}).encode(), f"/v1/batches/{secrets.token_urlsafe(18)}"
        found: dict[int, Verdict | SandboxError] = {}
        heard = time.monotonic()
        while len(found) < len(pairs):
            pause, problem = 1.0, "it ended the stream early"
            try:
                # The same request again is the same batch: after a cut it costs nothing, after a restart it asks anew
                status, after, text = self._put(path, body)
                if status in (200, 202):
                    for line in self._stream(f"{path}/verdicts"):
                        heard = time.monotonic()
                        if line:
                            found[line["item"]] = _read(line)
                elif status in (408, 429) or status >= 500:
                    pause, problem = after, f"it answered {status}: {text[:200]}"
                else:
                    raise ValueError(f"service: got {status}: {text[:300]}, wanted 200 or 202")
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            if len(found) < len(pairs):
                if time.monotonic() + pause > heard + self.patience_s:
                    lost = SandboxError(f"no verdict from {self.parts.netloc} for {self.patience_s:g} s: {problem}")
                    return [found.get(n, lost) for n in range(len(pairs))]
                time.sleep(pause)
        return [found[n] for n in range(len(pairs))]

    def _put(self, path: str, body: bytes) -> tuple[int, float, str]:
        """Status, seconds after which to come again, and text of the answer."""
        with contextlib.closing(self._connection()) as connection:
            connection.request("PUT", self.parts.path.rstrip("/") + path, body, self.headers)
            answer = connection.getresponse()
            return answer.status, float(answer.headers.get("Retry-After") or 1.0), answer.read().decode("utf-8", "replace")

    def _stream(self, path: str) -> Iterator[dict[str, Any] | None]:
        """Lines of a batch as they come, None for a beat."""
        with contextlib.closing(self._connection()) as connection:
            connection.request("GET", self.parts.path.rstrip("/") + path, headers=self.headers)
            answer = connection.getresponse()
            if answer.status == 200:
                for line in answer:
                    if line.endswith(b"\n"):  # else it was cut
                        yield json.loads(line) if line.strip() else None

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.parts.scheme == "https" else http.client.HTTPConnection
        return kind(self.parts.hostname, self.parts.port, timeout=SILENCE_S)


def _read(line: dict[str, Any]) -> Verdict | SandboxError:
    if "verdict" in line:
        return Verdict.from_dict(line["verdict"])
    return SandboxError(f"{line['error']['kind']}: {line['error']['message']}")


class Local:
    """Verdicts of slots of this machine, held by this process until `close`, or its end. Raises SandboxError where there are none.

    options: those of sandbox.pool.Pool (backend, policy, precision, track, limits, slots). A second process waits for free slots, so
    trainers of several processes on one machine want a Service.
    """

    def __init__(self, **options: Any):
        from sandbox.pool import Pool

        self.pool, self.loop = Pool(**options), asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="judge", daemon=True).start()
        self._await(self.pool.__aenter__())

    def _await(self, work: Coroutine) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def judge(self, pairs: Pairs) -> Found:
        """In the order of `pairs`. Raises ValueError where this machine lacks a tool."""
        return self._await(self._judge(pairs))

    async def judge_async(self, pairs: Pairs) -> Found:
        """As `judge`, from any event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._judge(pairs), self.loop))

    async def _judge(self, pairs: Pairs) -> Found:
        async def one(task: Task, candidate: Candidate) -> Verdict | SandboxError:
            try:
                return await self.pool.judge(task, candidate, fresh=True)
            except SandboxError as error:
                return error

        return list(await asyncio.gather(*(one(*pair) for pair in pairs)))

    def close(self) -> None:
        """End the slots. Questions in flight, and later ones, get a SandboxError."""
        self._await(self.pool.__aexit__())


def source(*, service: str | None = None, token_file: str | None = None, **options: str) -> Service | Local:
    """A Service at the address `service`, else a Local; for callers whose settings are plain values."""
    return Service(service, token_file=token_file, **options) if service else Local(**options)
