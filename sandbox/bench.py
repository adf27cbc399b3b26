"""The judge process of a slot: takes requests of the pool one after another and turns what a backend finds into verdicts."""

from __future__ import annotations

import collections
import dataclasses
import os
import socket
import time
import traceback

from data.records import Candidate, SandboxError, Status, Task, Verdict, content_id
from sandbox import backends, confine, slot
from sandbox.backends import PREPARED, ROOM, Failed, Limits, TaskInvalid
from sandbox.oracle import BANK_BYTES

HEAP = ((-1, 1 << 28), (-3, 1 << 26))
"""mallopt's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, bytes: questions are drawn from memory that this process already has, or a third of
their cost would be page faults. Candidates and references are forked from the zygote and have torch's usual memory."""


class Bench:
    """Backends and prepared tasks of one judge process."""

    def __init__(self, client: socket.socket):
        self.client = client
        self.backends: dict[str, backends.Backend] = {}
        self.prepared: collections.OrderedDict[str, tuple] = collections.OrderedDict()

    def backend(self, name: str) -> backends.Backend:
        if name not in self.backends:
            self.backends[name] = backends.load(name)
        return self.backends[name]

    def ready(self, backend: backends.Backend, task: Task, limits: Limits, precision: str, track: str):
        """The prepared task, or the TaskInvalid that it always gives."""
        # How often a candidate is asked does not change what is made ready
        key = content_id(backend.name, task.id, precision, track, limits.to_dict() | {"calls": None}, bool(task.baselines))
        if key not in self.prepared:
            # Told first: should the reference take this process down, that is a fact about the task.
            slot.send_message(self.client, {"phase": "prepare"})
            try:
                made = backend.prepare(task, limits=limits, precision=precision, track=track)
            except TaskInvalid as invalid:
                made = invalid
            slot.send_message(self.client, {"phase": "judge"})
            self.prepared[key] = (backend, made)
            # The newest must find room for its questions
            while len(self.prepared) > PREPARED.get(backend.name, ROOM) or (len(self.prepared) > ROOM and self.banked() > (ROOM - 1) * BANK_BYTES):
                old, dropped = self.prepared.popitem(last=False)[1]
                if not isinstance(dropped, TaskInvalid):
                    old.release(dropped)
        self.prepared.move_to_end(key)
        made = self.prepared[key][1]
        if isinstance(made, TaskInvalid):
            raise made
        made.limits = limits
        return made

    def banked(self) -> int:
        """Bytes of the questions that all prepared tasks keep."""
        return sum(made.reference.bank_bytes for _, made in self.prepared.values() if not isinstance(made, TaskInvalid))

    def judge(self, request: dict) -> Verdict:
        task, candidate, limits = (
            Task.from_dict(request["task"]),
            Candidate.from_dict(request["candidate"]),
            Limits.from_dict(request["limits"]),
        )
        policy, precision, track = request["policy"], request["precision"] or task.precision, request["track"]
        backend, stages = self.backend(request["backend"]), {}
        facts = {
            "task": task.id, "candidate": candidate.id, "backend": backend.name, "policy": policy, "precision": precision, "track": track, "stages_s": stages,
            "environment": backend.environment() | {"threads": limits.threads},
        }  # fmt: skip

        def timed(stage: str, step, *args, **keywords):
            begin = time.perf_counter()
            try:
                return step(*args, **keywords)
            finally:
                stages[stage] = round(time.perf_counter() - begin, 4)

        # A byte order mark says nothing about a kernel, and Python's own reader drops it
        candidate = dataclasses.replace(candidate, files={name: text.removeprefix("\ufeff") for name, text in candidate.files.items()})
        try:
            timed("check", backend.check, candidate, policy=policy)
            built = timed("build", backend.build, candidate, limits=limits)
            prepared = timed("prepare", self.ready, backend, task, limits, precision, track)
            found = timed("run", backend.judge, prepared, candidate, built, policy=policy)
        except TaskInvalid as invalid:
            return Verdict(status=Status.TASK_INVALID, reason=str(invalid), **facts)
        except Failed as failed:
            return Verdict(status=failed.status, reason=failed.reason, rule=failed.rule, flags=failed.flags, log=failed.log, **facts)
        figures = {
            name: getattr(found, name)
            for name in ("times_ms", "speedup", "device_ms", "flags", "own_kernel_share", "kernels", "speed_of_light", "log")
        }
        return Verdict(status=Status.CORRECT, **figures, **facts)

    def measure(self, request: dict) -> backends.Measurement:
        task, limits, backend = Task.from_dict(request["task"]), Limits.from_dict(request["limits"]), self.backend(request["backend"])
        try:
            prepared = self.ready(backend, task, limits, request["precision"] or task.precision, request["track"])
        except TaskInvalid as invalid:
            return backends.Measurement(invalid=str(invalid), environment=backend.environment())
        return backend.measure(prepared, worth=request.get("worth"))


def serve(client: socket.socket) -> None:
    """Answer until the pool hangs up. Never returns."""
    for option, most in HEAP:
        confine.libc.mallopt(option, most)
    bench = Bench(client)
    while True:
        try:
            request, _ = slot.receive_message(client)
        except EOFError:
            os._exit(0)
        try:
            answer = {"answer": getattr(bench, request["call"])(request).to_dict()}
        except SandboxError as error:
            answer = {"error": str(error)}
        except ValueError as error:
            answer = {"user": str(error)}
        except Exception as error:  # a fault of ours, told in full: the pool retries once and raises
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        slot.send_message(client, answer)
