"""The trusted server of a plan: compiles device code and launches it in memory of the judge. No candidate host code exists."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct

from sandbox import cudriver, plan
from sandbox.cuda_worker import Failure, Server, see_only, send, tensor_at
from sandbox.device_code import PRELUDE


def plan_server(channel, payload: dict, fds) -> None:
    """Role for slot.spawn, trusted. payload: files, arch, cubin (hex) or None, tf32, gpu. Serves on fds[0]; command C compiles."""
    see_only(payload["gpu"])
    _PlanServer(socket.socket(fileno=fds[0]), payload).serve()
    os._exit(0)


class _PlanServer(Server):
    def __init__(self, channel: socket.socket, payload: dict):
        super().__init__(channel)
        self.payload = payload
        self.plan = plan.parse(payload["files"])
        self.cubin = bytes.fromhex(payload["cubin"]) if payload.get("cubin") else None
        self.memory: dict[str, int] = {}
        self.calls: list[list] = []

    def build(self) -> None:
        """Answers with log and cubin before the context comes up, which takes longer than most builds."""
        log = ""
        if self.cubin is None:
            try:
                self.cubin, log = cudriver.compile_source(PRELUDE + self.plan.source, self.payload["arch"])
            except cudriver.CudaError as error:
                if not error.log:
                    raise
                raise Failure("compile_error", _first_error(error.log), log=error.log) from None
        send(self.channel, b"C" + struct.pack("<I", len(log.encode())) + log.encode() + self.cubin)
        if any(s.kind != "kernel" for s in self.plan.steps):
            import torch

            torch.backends.cuda.matmul.allow_tf32 = self.payload["tf32"]
            torch.zeros(1, device="cuda")
        cudriver.start()

    def bind(self) -> None:
        """Numbers, buffers and launches for the layout's shapes. What fails from here on is the candidate's."""
        first, parameters = self.layout["slots"][0], self.layout["parameters"]
        known = {name: plan.Tensor(shape=tuple(t["shape"]), dtype=t["dtype"]) for name, t in first.items() if name[0] == "x"}
        known |= {f"p.{name}": plan.Tensor(shape=tuple(t["shape"]), dtype=t["dtype"]) for name, t in parameters.items()}
        try:
            bound = plan.bind(self.plan, known, self.layout["scalars"])
        except plan.PlanError as error:
            raise Failure("format_error", str(error)) from None
        wanted = {name: (tuple(t["shape"]), t["dtype"]) for name, t in first.items() if name[0] == "y"}
        got = {name: (t.shape, t.dtype) for name, t in bound.outputs.items()}
        if got != wanted:
            raise Failure("incorrect", f"outputs: got {_shapes(got)}, wanted {_shapes(wanted)}")
        self.candidate_ran = True
        shapes = known | bound.buffers | bound.outputs | {name: tensor for name, (_, tensor) in bound.views.items()}
        self.memory = {name: cudriver.allocate(t.bytes) for name, t in bound.buffers.items()}
        for name, t in bound.buffers.items():
            cudriver.fill(self.memory[name], 0xFF, t.bytes)
        module = cudriver.Module(self.cubin)
        functions = {name: module.function(name) for name in self.plan.launched}
        for name, function in functions.items():
            declared, compiled = [p.bytes for p in self.plan.kernels[name]], cudriver.parameter_sizes(function)
            if compiled is not None and declared != compiled:
                raise Failure("format_error", f"kernel {name}: got parameters of {compiled} bytes compiled, wanted {declared} as declared")
        for slot in self.layout["slots"]:
            address = {name: self.base + t["offset"] for name, t in slot.items()}
            address |= {f"p.{name}": self.base + t["offset"] for name, t in parameters.items()} | self.memory
            for name, (base, _) in bound.views.items():
                address[name] = address[base]
            self.calls.append([self._prepare(launch, address, shapes, functions) for launch in bound.launches])
        cudriver.synchronize()

    def _prepare(self, launch: plan.Launch, address: dict[str, int], shapes: dict[str, plan.Tensor], functions: dict[str, int]):
        if launch.kind != "kernel":
            return _library_step(launch, lambda name: tensor_at(address[name], shapes[name].shape, shapes[name].dtype))
        kinds = {
            ("int", 1): ctypes.c_uint8,
            ("int", 4): ctypes.c_uint32,
            ("int", 8): ctypes.c_uint64,
            ("float", 4): ctypes.c_float,
            ("float", 8): ctypes.c_double,
        }
        values = [ctypes.c_uint64(address[a[1]]) if a[0] == "pointer" else kinds[a[0], a[1]](a[2]) for a in launch.args]
        function = functions[launch.options["kernel"]]
        cudriver.allow_shared(function, launch.shared)
        return cudriver.PreparedLaunch(function, launch.grid, launch.block, launch.shared, values)

    def run(self, slot: int) -> None:
        for step in self.calls[slot]:
            step()

    def other(self, command: bytes, body: bytes) -> None:
        if command == b"C":
            self.build()
            return
        if command == b"B":
            self.bind()
            send(self.channel, b"M")
            return
        if command != b"Z":
            super().other(command, body)
        steps, times = self.calls[struct.unpack("<I", body)[0]], []
        for step, described in zip(steps, self.plan.steps, strict=True):
            cudriver.synchronize()
            self.events.start()
            step()
            self.events.stop()
            cudriver.synchronize()
            times.append(
                [described.options["kernel"] if described.kind == "kernel" else described.kind, described.kind, self.events.elapsed_ms()]
            )
        send(self.channel, b"J" + json.dumps(times).encode())


def _first_error(log: str) -> str:
    return next(
        (line.strip() for line in log.splitlines() if "error" in line), log.strip().splitlines()[0] if log.strip() else "compilation failed"
    )[:500]


def _shapes(tensors: dict) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in sorted(tensors.items()))


def _library_step(launch: plan.Launch, tensor):
    import torch

    o = launch.options
    try:
        if launch.kind == "copy":
            source, target = tensor(o["from"]), tensor(o["to"])
            return lambda: target.copy_(source.view(target.shape))
        if launch.kind == "fill":
            target, value = tensor(o["to"]), o["value"]
            return lambda: target.fill_(value)
        if launch.kind == "gemm":
            a, b, out = tensor(o["a"]), tensor(o["b"]), tensor(o["out"])
            a, b = a.mT if o["trans_a"] else a, b.mT if o["trans_b"] else b
            _same_shape("gemm", torch.matmul(a.to("meta"), b.to("meta")).shape, out.shape)
            return _gemm(a, b, out, o["alpha"], o["beta"])
        x, w, bias, out = tensor(o["x"]), tensor(o["w"]), tensor(o["bias"]) if o["bias"] else None, tensor(o["out"])
        options = (o["stride"], o["padding"], o["dilation"], False, [0] * len(o["stride"]), o["groups"])
        meta = torch.ops.aten.convolution(x.to("meta"), w.to("meta"), bias if bias is None else bias.to("meta"), *options)
        _same_shape("conv", meta.shape, out.shape)
        return lambda: out.copy_(torch.ops.aten.convolution(x, w, bias, *options))
    except (RuntimeError, IndexError, TypeError) as error:
        raise Failure("runtime_error", f"{launch.kind}: {error}") from None


def _same_shape(kind: str, got, wanted) -> None:
    if tuple(got) != tuple(wanted):
        raise Failure("runtime_error", f"{kind}: got a result of {list(got)}, wanted {list(wanted)} as declared")


def _gemm(a, b, out, alpha: float, beta: float):
    import torch

    if alpha == 1.0 and beta == 0.0:
        return lambda: torch.matmul(a, b, out=out)
    if a.ndim == 2 and b.ndim == 2:
        return lambda: torch.addmm(out, a, b, alpha=alpha, beta=beta, out=out)
    return lambda: out.mul_(beta).add_(torch.matmul(a, b), alpha=alpha)
