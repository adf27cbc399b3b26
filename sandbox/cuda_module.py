"""Servers of Python modules: the task's own Model (trusted), eager and compiled, and a candidate's ModelNew (not).

A candidate is believed in nothing but the bytes that stand in the judge's memory when it rings.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import types
from typing import Any

from sandbox import cudriver
from sandbox.cuda_worker import Failure, Server, failure_of, see_only, send, tensor_at
from sandbox.structure import flatten


def reference_server(channel, payload: dict, fds) -> None:
    """Role for slot.spawn: the task's Model, eager and compiled; serves on fds[0] until it closes."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    _serve_module(_ModuleServer(socket.socket(fileno=fds[0]), files={}), payload["gpu"])


def candidate_server(channel, payload: dict, fds) -> None:
    """Role for slot.spawn, confined: a candidate's ModelNew. payload: files, library (bytes and signatures) or None, gpu, loader."""
    if payload.get("loader"):
        # Triton looks for the driver along it
        os.environ["LD_LIBRARY_PATH"] = payload["loader"]
    # The zygote imported CuPy as another user, and its cache folder is fixed at import: here it cannot be reached
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
    # Modules that compile as they load (load_inline): both of their units at once
    os.environ |= {"TORCH_EXTENSIONS_DIR": os.path.join(os.environ.get("TMPDIR", "/tmp"), "extensions"), "MAX_JOBS": "2"}
    _serve_module(_ModuleServer(socket.socket(fileno=fds[0]), files=payload["files"], library=payload.get("library")), payload["gpu"])


def _serve_module(server: _ModuleServer, gpu: str) -> None:
    import torch

    see_only(gpu)
    try:
        torch.zeros(1, device="cuda")
        count_devices_by_driver()
        torch.set_num_threads(1)
        cudriver.start()
    except BaseException as error:
        send(server.channel, b"E" + json.dumps(failure_of(error, False).fields).encode())
        return
    with torch.no_grad():
        server.serve()
    os._exit(0)


def count_devices_by_driver() -> None:
    """torch asks NVML, which sees no device from inside a confinement: then Triton and torch.compile refuse device 0."""
    import torch

    torch.cuda.device_count = torch._C._cuda_getDeviceCount


class _ModuleServer(Server):
    def __init__(self, channel: socket.socket, *, files: dict[str, str], library: tuple[bytes, dict] | None = None):
        super().__init__(channel)
        self.files, self.library = files, library
        self.modules: dict[str, Any] = {}
        self.active: Any = None
        self.buffers: dict[str, list] = {}
        """Of each module: (place in the judge's memory, submodule, attribute) of the buffers that the reference changes."""
        self.result: Any = None
        self.inputs: list[list] = []
        self.outputs: list[list] = []
        self.showing: list = []

    def mapped(self) -> None:
        self.modules.clear()
        self.inputs, self.outputs = [], []
        for slot in self.layout["slots"]:
            tensors = {name: tensor_at(self.base + t["offset"], tuple(t["shape"]), t["dtype"], t.get("stride")) for name, t in slot.items()}
            self.inputs.append([tensors[name] if name in tensors else self.layout["scalars"][name] for name in self.layout["arguments"]])
            self.outputs.append([tensors[f"y{i}"] for i in range(len(tensors)) if f"y{i}" in tensors])

    def run(self, slot: int) -> None:
        # New tensors for each call: one that reshapes its input in place must not meet its own work again
        self.result = self.active(*(v.detach() if hasattr(v, "detach") else v for v in self.inputs[slot]))

    def deliver(self, slot: int) -> None:
        import torch

        wanted = self.outputs[slot]
        try:
            got, structure = flatten(self.result, self.floating())
        except TypeError as error:
            raise Failure("incorrect", str(error)) from None
        described = [(list(t.shape), str(t.dtype)) if type(t) is torch.Tensor else type(t).__name__ for t in got]
        expected = [(list(t.shape), str(t.dtype)) for t in wanted]
        if described != expected or structure != self.layout["structure"]:
            raise Failure("incorrect", f"output: got {structure} {described}, wanted {self.layout['structure']} {expected}")
        for target, source in zip(wanted, got, strict=True):
            target.copy_(source)
        for target, module, name in self.showing:
            source = getattr(module, name)
            if type(source) is not torch.Tensor or (source.shape, source.dtype) != (target.shape, target.dtype):
                wanted = f"{target.dtype} {list(target.shape)}"
                raise Failure(
                    "incorrect",
                    f"buffer {name}: got {getattr(source, 'dtype', type(source).__name__)} {list(getattr(source, 'shape', ()))}, wanted {wanted}",
                )
            target.copy_(source)
        self.result = None

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def other(self, command: bytes, body: bytes) -> None:
        if command != b"L":
            super().other(command, body)
        o = json.loads(body)
        weights = "name"
        if o["name"] not in self.modules:
            self.modules[o["name"]], weights = self.load(o)
        self.active = self.modules[o["name"]]
        self.showing = self.buffers["reference" if o["name"] == "compile" else o["name"]]
        send(self.channel, b"K" + json.dumps({"weights": weights}).encode())

    def load(self, o: dict) -> tuple[Any, str]:
        """Build the module named in o (reference, compile, candidate) on the GPU with the judge's weights."""
        import torch

        # From here on code of the task or the candidate runs
        self.candidate_ran = True
        torch.backends.cuda.matmul.allow_tf32 = o["tf32"]
        task = types.ModuleType("task")
        torch.manual_seed(0)
        exec(compile(o["source"], "task.py", "exec"), task.__dict__)
        with torch.device("cuda"):
            init = task.get_init_inputs()
        if o["name"] == "compile":
            if "reference" not in self.modules:
                self.modules["reference"], _ = self.load(o | {"name": "reference"})
            torch._dynamo.reset()
            return torch.compile(self.modules["reference"]), "name"
        if o["name"] != "candidate":
            made = self._make(task.Model, init)
        else:
            made = self._make(self.candidate_class(), init)
        made = made.train() if o["mode"] == "train" else made.eval()
        weights = self.load_weights(made)
        self.buffers[o["name"]] = self.shown(made, weights)
        return made, weights

    def shown(self, made, weights: str) -> list:
        """Where the judge reads the buffers that the reference changes, and the module's own that stand for them: by name, else by order."""
        places, own = self.layout["parameters"], list(made.state_dict())
        found = []
        for name in self.layout["changing"]:
            t, mine = places[name], name if weights == "name" else own[list(places).index(name)]
            path, _, attribute = mine.rpartition(".")
            found.append(
                (tensor_at(self.base + t["offset"], tuple(t["shape"]), t["dtype"], t.get("stride")), made.get_submodule(path), attribute)
            )
        return found

    def floating(self):
        """The dtype of this precision."""
        import torch

        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.layout["precision"]]

    def _make(self, kind, init):
        import torch

        made = kind(*init)
        return made.to("cuda", self.floating()) if isinstance(made, torch.nn.Module) else made

    def candidate_class(self):
        folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), "candidate")
        for name, text in self.files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        os.chdir(folder)
        sys.path.insert(0, folder)
        if self.library is not None:
            from sandbox.worker import extension_module

            path = os.path.join(folder, "library.so")
            with open(path, "wb") as file:
                file.write(self.library[0])
            sys.modules["cuda_extension"] = extension_module(path, self.library[1])
        # A real file, so that inspect.getsource and Triton find it
        module = importlib.import_module("model_new")
        if not hasattr(module, "ModelNew"):
            raise Failure("format_error", "model_new.py: got no class ModelNew, wanted one")
        return module.ModelNew

    def load_weights(self, made) -> str:
        """The judge's parameters by name, else by order of shapes. Returns which."""
        import torch

        wanted = {name: tensor_at(self.base + t["offset"], tuple(t["shape"]), t["dtype"]) for name, t in self.layout["parameters"].items()}
        if not isinstance(made, torch.nn.Module):
            raise Failure("format_error", f"ModelNew: got {type(made).__name__}, wanted a torch.nn.Module")
        own = made.state_dict()
        if {n: t.shape for n, t in own.items()} == {n: t.shape for n, t in wanted.items()}:
            made.load_state_dict({name: t.clone() for name, t in wanted.items()})
            return "name"
        if [t.shape for t in own.values()] == [t.shape for t in wanted.values()]:
            made.load_state_dict({name: t.clone() for name, t in zip(own, wanted.values(), strict=True)})
            return "shape"
        got, names = {n: list(t.shape) for n, t in own.items()}, {n: list(t.shape) for n, t in wanted.items()}
        raise Failure("incorrect", f"state_dict: got {got}, wanted {names}")
