"""The judge as a service: batches over HTTP from many clients, one pool of slots behind them.

    cuda-judge serve [--backend cpp|cuda] [--host 127.0.0.1] [--port 0] [--token-file FILE]

    PUT    /v1/batches/ID            {"items": [{"task": {...}, "candidate": {...}, "options": {...}}, ...]}  -> 202; again with the same body: 200
    POST   /v1/batches               the same, the service chooses the id
    GET    /v1/batches/ID            {"batch", "items", "done", "state": "queued" | "running" | "done"}
    GET    /v1/batches/ID/verdicts   JSON lines as they are found, until all are; ?from=N leaves out N lines, ?follow=0 does not wait
    DELETE /v1/batches/ID            what has not begun is given up
    GET    /health, /metrics         one JSON object; Prometheus text

task: `source` (and what else a Task has); candidate: `files` (name to text) and maybe `format`; options: policy, precision, track, fresh.
A line is {"line", "item", "verdict"} or {"line", "item", "error": {"kind", "status", "message"}}: a failure of ours is never a verdict.
Candidates of one task go to the slots one after another, so that they share reference, oracle, questions and baselines; clients take
turns. A batch lives on when its client goes; its id is its client's to choose, so that a repeated request is the same batch.
Not here: who may ask for how much (one token for all), TLS, storage (a restart forgets all batches; clients ask again).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import hashlib
import hmac
import json
import math
import os
import pathlib
import re
import secrets
import signal
import socket
import sys
import time
import traceback
from typing import Any

from data.records import BACKENDS, POLICIES, PRECISIONS, TRACKS, Candidate, SandboxError, Task
from sandbox.backends import Limits
from sandbox.judge import MAX_FILE, format_of, task_from_source

OPTIONS: dict[str, tuple] = {"policy": POLICIES, "precision": PRECISIONS, "track": TRACKS, "fresh": (True, False), "backend": BACKENDS}
QUANTUM = 8
"""Candidates of one task that a batch may send to the slots before the next batch has its turn: making a task ready costs seconds."""
MAX_FILES = 64
BODY_S = 60.0
BEAT_S = 15.0
"""An empty line so often keeps a waiting stream open."""
LINGER_S = 10.0
"""How long a service that ends waits for its clients to read what is found."""
_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")


class Refused(Exception):
    """A request that is answered with `code` and one line."""

    def __init__(self, code: int, line: str, *, after_s: float | None = None):
        super().__init__(line)
        self.code, self.after_s = code, after_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One question of a batch."""

    task: Task
    candidate: Candidate
    options: dict[str, Any]


def read_items(body: bytes, *, backend: str, most: int) -> list[Item]:
    """The items of a request's body. Raises ValueError with the place, what was got and what was wanted; Refused above `most` items."""
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"body: got no JSON ({str(error)[:100]}), wanted an object with items") from None
    plain = _fields("body", plain, {"items"}, {"items"})
    if not isinstance(plain["items"], list) or not plain["items"]:
        raise ValueError("items: got none, wanted a list of at least one")
    if len(plain["items"]) > most:
        raise Refused(413, f"items: got {len(plain['items'])}, wanted at most {most} a batch")
    tasks: dict[str, Task] = {}
    return [_item(f"items[{n}]", item, backend, tasks) for n, item in enumerate(plain["items"])]


def _fields(place: str, plain: Any, allowed: set[str] | None, wanted: set[str] = frozenset()) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise ValueError(f"{place}: got {type(plain).__name__}, wanted an object")
    unknown = sorted(set(plain) - allowed) if allowed is not None else []
    if unknown:
        raise ValueError(f"{place}: got unknown {unknown[0][:40]!r}, wanted {', '.join(sorted(allowed))}")
    for name in sorted(wanted - set(plain)):
        raise ValueError(f"{place}: got no {name!r}, wanted it")
    return plain


def _item(place: str, plain: Any, backend: str, tasks: dict[str, Task]) -> Item:
    plain = _fields(place, plain, {"task", "candidate", "options"}, {"task", "candidate"})
    options = _fields(f"{place}.options", plain.get("options") or {}, set(OPTIONS))
    for name, value in options.items():
        # 1 == True: an option is one of the values, of its own type
        if not any(type(value) is type(a) and value == a for a in OPTIONS[name]):
            raise ValueError(f"{place}.options.{name}: got {str(value)[:40]!r}, wanted {' or '.join(str(a) for a in OPTIONS[name])}")
    if options.get("backend", backend) != backend:
        raise ValueError(f"{place}.options.backend: got {options['backend']}, wanted {backend}: this service has no other")
    told = _fields(f"{place}.task", plain["task"], None, {"source"})
    written = _fields(f"{place}.candidate", plain["candidate"], {"id", "format", "files"}, {"files"})
    key = json.dumps(told, sort_keys=True)
    if key not in tasks:
        tasks[key] = _task(f"{place}.task", told)
    return Item(task=tasks[key], candidate=_candidate(f"{place}.candidate", written), options={k: v for k, v in options.items() if k != "backend"})


def _text(place: str, value: Any) -> str:
    """Text that can be written to a file: what is no character is replaced, as in files that are read."""
    if not isinstance(value, str):
        raise ValueError(f"{place}: got {type(value).__name__}, wanted text")
    if len(value) > MAX_FILE:
        raise ValueError(f"{place}: got {len(value)} characters, wanted at most {MAX_FILE}")
    return value.encode("utf-8", "replace").decode()


def _task(place: str, plain: dict[str, Any]) -> Task:
    source = _text(f"{place}.source", plain["source"])
    try:
        own = task_from_source(source) if not {"mode", "precision"} <= set(plain) else None
        defaults = {"mode": own.mode, "precision": own.precision} if own else {}
        return Task.from_dict({"origin": "user", **defaults, **plain, "source": source})
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{place}: {error}") from None


def _candidate(place: str, plain: dict[str, Any]) -> Candidate:
    files = plain["files"]
    if not isinstance(files, dict) or not files or len(files) > MAX_FILES:
        raise ValueError(f"{place}.files: got {len(files) if isinstance(files, dict) else type(files).__name__}, wanted 1 to {MAX_FILES} names with their text")
    files = {_text(f"{place}.files", name): _text(f"{place}.files[{name[:40]!r}]", text) for name, text in files.items()}
    try:
        return Candidate(format=plain.get("format") or format_of(files), files=files)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from None


class Batch:
    """Items that came together, and the lines found so far."""

    def __init__(self, id: str, digest: str, items: list[Item]):
        self.id, self.digest, self.size = id, digest, len(items)
        self.items: dict[int, Item] = dict(enumerate(items))
        self.groups: collections.deque[collections.deque[int]] = collections.deque()
        by_task: dict[str, list[int]] = {}
        for number, item in self.items.items():
            by_task.setdefault(item.task.id, []).append(number)
        for numbers in by_task.values():
            self.groups.extend(collections.deque(numbers[at : at + QUANTUM]) for at in range(0, len(numbers), QUANTUM))
        self.lines: list[bytes] = []
        self.bytes, self.read, self.running = 0, 0, 0
        self.ended: float | None = None
        self.news = asyncio.Event()

    def add(self, number: int, **found: Any) -> None:
        """One item has its line; a second one, found after the service gave it up, is dropped."""
        if self.items.pop(number, None) is None:
            return
        line = json.dumps({"line": len(self.lines), "item": number, **found}).encode() + b"\n"
        self.lines.append(line)
        self.bytes += len(line)
        if self.done:
            self.ended = time.monotonic()
        self.news.set()
        self.news = asyncio.Event()

    @property
    def done(self) -> bool:
        return len(self.lines) == self.size

    def state(self) -> dict[str, Any]:
        state = "done" if self.done else "running" if self.running or self.lines else "queued"
        return {"batch": self.id, "items": self.size, "done": len(self.lines), "state": state}


class Service:
    """Accepts batches, hands their items to the pool in turns, keeps what is found.

    pool: an entered sandbox.pool.Pool. queue: items accepted and not yet done, of all clients. keep_s, keep_bytes: how long and how
    much of finished batches is kept. watch: a sandbox.canary.Watch on the pool, or None.
    """

    def __init__(
        self,
        pool: Any,
        *,
        queue: int = 4096,
        batch_items: int = 1024,
        max_bytes: int = 64 << 20,
        keep_s: float = 3600.0,
        keep_bytes: int = 256 << 20,
        token: str | None = None,
        watch: Any = None,
    ):
        self.pool, self.queue, self.batch_items, self.max_bytes = pool, queue, min(batch_items, queue), max_bytes
        self.keep_s, self.keep_bytes, self.token, self.watch = keep_s, keep_bytes, token, watch
        self.batches: dict[str, Batch] = {}
        self.turns: collections.deque[Batch] = collections.deque()
        self.queued = self.running = 0
        self.draining = False
        self.verdicts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.errors: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[int] = collections.Counter()
        self.item_s = 1.0
        """Running mean of the seconds that an item holds its place: what Retry-After is made of."""
        # Two an open slot: one at work, one behind it, so that the pool can choose what its slots have ready
        self.window = 2 * max(1, len(pool.slots))
        self.more = asyncio.Event()
        self.jobs: set[asyncio.Task] = set()

    # ---- batches ----

    def submit(self, id: str, body: bytes, items: list[Item]) -> tuple[Batch, bool]:
        """The batch of this id, and whether it is new. Raises Refused."""
        digest = hashlib.sha256(body).hexdigest()
        known = self.batches.get(id)
        if known:
            if known.digest != digest:
                raise Refused(409, f"batch {id}: got other items than before, wanted a new id")
            return known, False
        if self.draining:
            raise Refused(503, "this service is ending, wanted another", after_s=30)
        open_items = self.queued + self.running
        if open_items + len(items) > self.queue:
            wait = (open_items + len(items) - self.queue) * self.item_s / max(1, len(self.pool.slots))
            raise Refused(429, f"queue: got {len(items)} items beside {open_items}, wanted at most {self.queue} in all", after_s=min(max(wait, 1.0), 60.0))
        self.forget()
        batch = self.batches[id] = Batch(id, digest, items)
        self.queued += len(items)
        self.turns.append(batch)
        self.more.set()
        return batch, True

    def forget(self) -> None:
        """Let go of finished batches that are old, or too much together; the oldest first."""
        old = sorted((b for b in self.batches.values() if b.done), key=lambda b: b.ended)
        kept = sum(b.bytes for b in old)
        for batch in old:
            if time.monotonic() - batch.ended > self.keep_s or kept > self.keep_bytes:
                kept -= batch.bytes
                del self.batches[batch.id]

    def give_up(self, batch: Batch, kind: str, message: str) -> None:
        """Items that have not begun get an error of this kind."""
        for group in batch.groups:
            for number in group:
                self.queued -= 1
                self.errors[kind] += 1
                batch.add(number, error={"kind": kind, "status": 503, "message": message})
        batch.groups.clear()

    def _next(self) -> tuple[Batch, int] | None:
        while self.turns:
            batch = self.turns[0]
            if not batch.groups:
                self.turns.popleft()
                continue
            number = batch.groups[0].popleft()
            if not batch.groups[0]:
                batch.groups.popleft()
                self.turns.rotate(-1)
            return batch, number
        return None

    async def dispatch(self) -> None:
        """Hand items to the pool for ever."""
        places = asyncio.Semaphore(self.window)
        while True:
            await places.acquire()
            while (found := self._next()) is None:
                self.more.clear()
                await self.more.wait()
            self.queued -= 1
            self.running += 1
            job = asyncio.create_task(self._one(*found))
            self.jobs.add(job)
            job.add_done_callback(lambda job: (self.jobs.discard(job), places.release()))

    async def _one(self, batch: Batch, number: int) -> None:
        item, begin = batch.items[number], time.monotonic()
        batch.running += 1
        try:
            verdict = await self.pool.judge(item.task, item.candidate, **({"fresh": True} | item.options))
            found: dict[str, Any] = {"verdict": verdict.to_dict()}
            self.verdicts[(verdict.status.value, verdict.policy)] += 1
        except SandboxError as error:
            found = {"error": {"kind": "sandbox", "status": 503, "message": str(error)}}
        except ValueError as error:
            found = {"error": {"kind": "machine", "status": 503, "message": str(error)}}
        except Exception as error:  # a fault of ours: told to the client, counted and printed; the other items go on
            traceback.print_exc()
            found = {"error": {"kind": "service", "status": 503, "message": f"{type(error).__name__}: {error}"}}
        if "error" in found:
            self.errors[found["error"]["kind"]] += 1
        self.running -= 1
        batch.running -= 1
        self.item_s += 0.1 * (time.monotonic() - begin - self.item_s)
        batch.add(number, **found)

    async def lines(self, batch: Batch, at: int, follow: bool):
        """Lines of a batch from `at` on; with `follow` until the last, an empty line at once and every BEAT_S while nothing is new."""
        if follow and at >= len(batch.lines) and not batch.done:
            yield b"\n"  # the head of the answer goes out with its first bytes
        while True:
            news = batch.news
            while at < len(batch.lines):
                yield batch.lines[at]
                at += 1
                batch.read = max(batch.read, at)
            if batch.done or not follow:
                return
            if news is batch.news:
                try:
                    await asyncio.wait_for(news.wait(), BEAT_S)
                except TimeoutError:
                    yield b"\n"

    async def drain(self, seconds: float) -> bool:
        """Take nothing new, judge what was accepted. False when some of it was not done within `seconds`."""
        self.draining = True
        end = time.monotonic() + seconds
        while (self.queued or self.running) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        whole = not (self.queued or self.running)
        for batch in self.batches.values():
            self.give_up(batch, "shutdown", "the service ended before this item's turn")
            for number in list(batch.items):
                batch.add(number, error={"kind": "shutdown", "status": 503, "message": "the service ended while this item was judged"})
        end = time.monotonic() + LINGER_S
        while any(b.read < b.size for b in self.batches.values() if time.monotonic() - b.ended < LINGER_S) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        return whole

    # ---- HTTP ----

    def application(self) -> Any:
        """The ASGI application."""
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def refused(request, error: Refused):
            self.refused[error.code] += 1
            headers = {"Retry-After": str(math.ceil(error.after_s))} if error.after_s else {}
            return JSONResponse({"error": str(error)}, status_code=error.code, headers=headers)

        async def missing(request, error):
            self.refused[error.status_code] += 1
            return JSONResponse({"error": f"{request.method} {request.url.path}: {error.detail}"}, status_code=error.status_code)

        routes = [
            Route("/v1/batches", self._submit, methods=["POST"]),
            Route("/v1/batches/{id}", self._submit, methods=["PUT"]),
            Route("/v1/batches/{id}", self._state, methods=["GET"]),
            Route("/v1/batches/{id}", self._cancel, methods=["DELETE"]),
            Route("/v1/batches/{id}/verdicts", self._verdicts, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
        ]
        from starlette.exceptions import HTTPException

        return Starlette(routes=routes, exception_handlers={Refused: refused, HTTPException: missing})

    def _known(self, request: Any) -> None:
        given = request.headers.get("authorization", "")
        if self.token is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise Refused(401, "authorization: got no or another token, wanted 'Bearer TOKEN'")

    def _batch(self, request: Any) -> Batch:
        self._known(request)
        batch = self.batches.get(request.path_params["id"])
        if batch is None:
            raise Refused(404, "batch: got an unknown id, wanted one of this service since its start (finished ones are forgotten in time)")
        return batch

    async def _body(self, request: Any) -> bytes:
        told = request.headers.get("content-length", "")
        if told.isdigit() and int(told) > self.max_bytes:
            raise Refused(413, f"body: got {told} bytes, wanted at most {self.max_bytes}")
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    size += len(part)
                    if size > self.max_bytes:
                        raise Refused(413, f"body: got more than {self.max_bytes} bytes, wanted at most that")
                    parts.append(part)
        except TimeoutError:
            raise Refused(408, f"body: got {size} bytes in {BODY_S:g} s, wanted all of it") from None
        return b"".join(parts)

    async def _submit(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        self._known(request)
        id = request.path_params.get("id") or secrets.token_urlsafe(18)
        if not _ID.fullmatch(id):
            raise Refused(400, f"id: got {id[:70]!r}, wanted 8 to 64 letters, digits, - or _")
        body = await self._body(request)
        if id not in self.batches and self.draining:
            raise Refused(503, "this service is ending, wanted another", after_s=30)
        try:
            items = await asyncio.to_thread(read_items, body, backend=self.pool.backend, most=self.batch_items)
        except ValueError as error:
            raise Refused(400, " ".join(str(error).split())) from None
        batch, new = self.submit(id, body, items)
        return JSONResponse(batch.state(), status_code=202 if new else 200)

    async def _state(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse(self._batch(request).state())

    async def _cancel(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        batch = self._batch(request)
        self.give_up(batch, "cancelled", "given up by its client")
        return JSONResponse(batch.state())

    async def _verdicts(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        batch, at, follow = self._batch(request), request.query_params.get("from", "0"), request.query_params.get("follow", "1")
        if not at.isdecimal() or len(at) > 9:
            raise Refused(400, f"from: got {at[:20]!r}, wanted a number of lines")
        if follow not in ("0", "1"):
            raise Refused(400, f"follow: got {follow[:20]!r}, wanted 0 or 1")
        return StreamingResponse(self.lines(batch, int(at), follow == "1"), media_type="application/x-ndjson")

    async def _health(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        alarm = bool(self.watch and self.watch.alarm)
        facts = {"status": "draining" if self.draining else "alarm" if alarm else "ok", "backend": self.pool.backend, "policy": self.pool.policy}
        facts |= {"slots": len(self.pool.slots), "queued": self.queued, "running": self.running}
        return JSONResponse(facts, status_code=503 if self.draining else 200)

    async def _metrics(self, request: Any) -> Any:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from starlette.responses import Response

        self._known(request)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def collect(self):
        """What /metrics shows, as prometheus_client asks for it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def counter(name: str, text: str, labels: tuple[str, ...], values: dict[tuple, float]):
            family = CounterMetricFamily(f"cuda_judge_{name}", text, labels=labels)
            for key, value in sorted(values.items()):
                family.add_metric([str(k) for k in key], value)
            return family

        counts = self.pool.counts
        yield counter("verdicts", "Verdicts given to clients.", ("status", "policy"), self.verdicts)
        yield counter("item_errors", "Items without a verdict: our failures, cancelled, shut down.", ("kind",), {(k,): v for k, v in self.errors.items()})
        yield counter("refused_requests", "Requests answered with an error.", ("code",), {(k,): v for k, v in self.refused.items()})
        yield counter("sandbox_errors", "Failures of the pool, after their retry.", (), {(): counts["sandbox_errors"]})
        yield counter("cache_hits", "Verdicts from the pool's memory or from a question in flight.", (), {(): counts["cached"] + counts["shared"]})
        for name, text, value in (
            ("queued_items", "Items that wait.", self.queued),
            ("running_items", "Items with the pool.", self.running),
            ("slots", "Slots held.", len(self.pool.slots)),
            ("slots_busy", "Slots at work.", len(self.pool.slots) - len(self.pool.idle)),
            ("batches", "Batches kept.", len(self.batches)),
            ("draining", "1 when nothing new is taken.", int(self.draining)),
        ):
            yield GaugeMetricFamily(f"cuda_judge_{name}", text, value=value)
        if self.watch:
            counts = {("cheat", outcome): 0 for outcome in ("credited", "refused", "unjudged")} | {("honest", o): 0 for o in ("credited", "refused", "unjudged")}
            yield counter("canaries", "Known candidates judged among the others.", ("kind", "outcome"), counts | self.watch.counts)
            yield GaugeMetricFamily("cuda_judge_canary_alarm", "1 when a known cheat was credited or a known honest kernel refused.", value=int(self.watch.alarm))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ValueError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)
        return sock
    except OSError as error:
        raise ValueError(f"{host}:{port}: {error.strerror or error}, wanted an address to listen on") from None


async def serve(options: argparse.Namespace, sock: socket.socket, token: str | None, limits: Limits) -> int:
    """Serve until a signal, then drain. Gives the exit code."""
    import uvicorn

    from sandbox.canary import Watch
    from sandbox.pool import Pool

    class Server(uvicorn.Server):
        def capture_signals(self):
            return contextlib.nullcontext()  # a signal means drain, below

    async with Pool(backend=options.backend, policy=options.policy, limits=limits, slots=options.slots) as pool:
        watch = Watch(pool, rate=options.canaries) if options.canaries else None
        service = Service(
            pool, queue=options.queue, batch_items=options.batch, max_bytes=int(options.max_mb * (1 << 20)), keep_s=options.keep_s, token=token, watch=watch
        )  # fmt: skip
        ended = [asyncio.Event(), asyncio.Event()]

        def signalled():
            (ended[1] if ended[0].is_set() else ended[0]).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, signalled)
        config = uvicorn.Config(service.application(), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5)
        server = Server(config)
        dispatcher, listener = asyncio.create_task(service.dispatch()), asyncio.create_task(server.serve(sockets=[sock]))
        host, port = sock.getsockname()[:2]
        print(f"cuda-judge: serving {options.backend} on http://{f'[{host}]' if ':' in host else host}:{port}, slots {len(pool.slots)}", flush=True)
        first = asyncio.create_task(ended[0].wait())
        await asyncio.wait({first, dispatcher, listener}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            for task in (dispatcher, listener):
                if task.done():
                    task.result()
            raise SandboxError("the HTTP server ended by itself")
        print(f"cuda-judge: draining, {service.queued} queued and {service.running} running", file=sys.stderr, flush=True)
        drain, second = asyncio.create_task(service.drain(options.drain_s)), asyncio.create_task(ended[1].wait())
        await asyncio.wait({drain, second}, return_when=asyncio.FIRST_COMPLETED)
        whole = drain.done() and drain.result()
        server.should_exit = True
        await asyncio.wait({listener}, timeout=6)
        if not whole:
            # Slots still at work: they end with this process, as after a kill
            print(f"cuda-judge: ended with {service.queued + service.running} items not judged", file=sys.stderr, flush=True)
            os._exit(3)
        dispatcher.cancel()
        if watch:
            await watch.close()
    return 0


def _limits(words: list[str]) -> Limits:
    fields = {f.name: f for f in dataclasses.fields(Limits)}
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[name] = type(fields[name].default)(float(value))
        except (KeyError, ValueError, OverflowError):
            raise ValueError(f"--limit: got {word!r}, wanted NAME=NUMBER with {', '.join(fields)}") from None
    return Limits(**found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cuda-judge serve", description="Judge batches over HTTP. SIGTERM drains; the address is the first line of stdout.")
    parser.add_argument("--backend", choices=BACKENDS, default="cpp")
    parser.add_argument("--policy", choices=POLICIES, default="libraries_allowed", help="of items that name none")
    parser.add_argument("--host", default="127.0.0.1", help="other than loopback needs --token-file")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--token-file", type=pathlib.Path, help="clients must send its text as Bearer token")
    parser.add_argument("--slots", type=int, help="slots to hold (default: all that are free)")
    parser.add_argument("--queue", type=int, default=4096, help="most items accepted and not done; above it 429 (%(default)s)")
    parser.add_argument("--batch", type=int, default=1024, help="most items a batch (%(default)s)")
    parser.add_argument("--max-mb", type=float, default=64.0, help="largest request, MiB (%(default)g)")
    parser.add_argument("--keep-s", type=float, default=3600.0, help="seconds that a finished batch is kept (%(default)g)")
    parser.add_argument("--drain-s", type=float, default=600.0, help="seconds after SIGTERM to finish what was accepted (%(default)g)")
    parser.add_argument("--canaries", type=float, default=0.01, help="known cheats and honest kernels per judged item (%(default)g; 0: none)")
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER", help="a limit of candidates, for example call_s=10")
    options = parser.parse_args(arguments)
    try:
        if not 0.0 <= options.canaries <= 1.0:
            raise ValueError(f"--canaries: got {options.canaries:g}, wanted 0 to 1")
        if options.queue < 1 or options.batch < 1 or options.max_mb <= 0 or not 0 <= options.port <= 65535 or (options.slots or 1) < 1:
            raise ValueError("--queue, --batch, --max-mb, --slots, --port: wanted positive numbers (and a port below 65536)")
        limits = _limits(options.limit)
        token = options.token_file.read_text().strip() if options.token_file else None
        if token == "":
            raise ValueError(f"{options.token_file}: got an empty token, wanted one")
        if token is None and options.host not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError(f"--host: got {options.host} without --token-file, wanted a token where others can ask")
        sock = listen(options.host, options.port)
    except (ValueError, OSError) as error:
        print(f"cuda-judge serve: {error}", file=sys.stderr)
        return 2
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        print(f"cuda-judge serve: got no module {error.name!r}, wanted pip install 'cuda-agent[service]'", file=sys.stderr)
        return 2
    try:
        return asyncio.run(serve(options, sock, token, limits))
    except SandboxError as error:
        print(f"cuda-judge serve: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
