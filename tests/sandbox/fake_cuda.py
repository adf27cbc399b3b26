"""A CUDA driver made of shared host memory, so that the judge's own logic on the GPU path runs on any machine.

Kernels are Python functions of KERNELS by name; a launch runs at once. It says nothing about a real GPU: tests marked gpu do.
"""

import contextlib
import ctypes
import faulthandler
import math
import mmap
import os
import signal
import time

import torch

from sandbox import confine, cuda_closed, cuda_memory, cuda_module, cuda_plan, cuda_task, cuda_worker, cudriver, slot

MAPPED = {}
KERNELS = {}


def floats(address, count):
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


def relu(x, y, n):
    floats(y, n).copy_(floats(x, n).relu())


def stale(x, y, n, seen=[]):  # noqa: B006 - state across calls is the cheat
    seen.append(floats(x, n).relu().clone())
    floats(y, n).copy_(seen[0])


def half(x, y, n):
    floats(y, n // 2).copy_(floats(x, n // 2).relu())


def beyond(x, y, n):
    floats(y, n).copy_(floats(x, n).relu())
    floats(y + 4 * n, 1).fill_(1.0)


def scribble(x, y, n):
    floats(y, n).copy_(floats(x, n).relu())
    floats(x, 1).fill_(1.0)


def doubles(x, y, n):
    floats(x, n).mul_(2.0)
    relu(x, y, n)


def triples(x, y, n):
    floats(y, n).copy_((2.0 * floats(x, n)).relu())
    floats(x, n).mul_(3.0)


def doubled(x, y, n):
    floats(y, n).copy_((2.0 * floats(x, n)).relu())


def scales(x, y, total, scale, n):
    floats(y, n).copy_(floats(x, n).relu() * floats(scale, 1))


def adds_up(x, y, total, scale, n):
    scales(x, y, total, scale, n)
    floats(total, 256).add_(floats(x, n).view(-1, 256).sum(0))


def adds_up_twice(x, y, total, scale, n, asked=[]):  # noqa: B006 - state across calls is the cheat
    asked.append(n)
    (adds_up if len(asked) <= 2 else scales)(x, y, total, scale, n)


def crash(x, y, n):
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(x, y, n):
    time.sleep(60)


def fault(x, y, n):
    raise cudriver.CudaError("cuCtxSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")


def fast(x, y, n):
    relu(x, y, n)


KERNELS.update(relu=relu, stale=stale, half=half, beyond=beyond, scribble=scribble, crash=crash, hang=hang, fault=fault, fast=fast)
KERNELS.update(doubles=doubles, triples=triples, doubled=doubled, scales=scales, adds_up=adds_up, adds_up_twice=adds_up_twice)


def allocate_shared(size, index=0):
    size = -(-size // 4096) * 4096
    descriptor = os.memfd_create("slab")
    os.ftruncate(descriptor, size)
    return map_shared(descriptor, size), size, descriptor


def map_shared(descriptor, size, index=0):
    area = mmap.mmap(descriptor, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    MAPPED[address] = area
    return address


def allocate(size):
    area = ctypes.create_string_buffer(max(size, 1))
    MAPPED[ctypes.addressof(area)] = area
    return ctypes.addressof(area)


def tensor_at(address, shape, dtype, stride=None):
    kind = getattr(torch, dtype)
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer((ctypes.c_uint8 * (count * kind.itemsize)).from_address(address), dtype=torch.uint8).view(kind)
    return flat.as_strided(shape, stride) if stride is not None else flat.view(shape)


class Events:
    def start(self):
        self.first = time.perf_counter()

    def stop(self):
        self.last = time.perf_counter()

    def elapsed_ms(self):
        return 1e3 * (self.last - self.first)


class Module:
    def __init__(self, image):
        assert image == b"cubin"

    def function(self, name):
        return name


class PreparedLaunch:
    def __init__(self, function, grid, block, shared, values):
        self.function, self.values = function, values

    def __call__(self):
        KERNELS[self.function](*(v.value for v in self.values))


def compile_source(source, arch, options=()):
    if "broken" in source:
        raise cudriver.CudaError("nvrtcCompileProgram", 6, "NVRTC_ERROR_COMPILATION", "kernels.cu(1): error: broken is undefined")
    return b"cubin", ""


FACTS = {
    "name": "fake",
    "uuid": "GPU-fake",
    "driver": 13000,
    "arch": "sm_90",
    "l2_bytes": 1 << 16,
    "memory_clock_khz": 1000,
    "memory_bus_bits": 64,
}


class _OnTheHost(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        def host(value):
            return "cpu" if value == "cuda" or (isinstance(value, torch.device) and value.type == "cuda") else value

        return function(
            *(host(a) if isinstance(a, str | torch.device) else a for a in args), **{k: host(v) for k, v in (kwargs or {}).items()}
        )


class Child:
    def __init__(self, pid):
        self.pid = pid

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None
        return {"log": "", "status": 9}


SPAWNED = []


def spawn(role, payload, *, fds=(), confinement=None, zygote=None):
    module, function = role.split(":")
    run = getattr({"sandbox.cuda_plan": cuda_plan, "sandbox.cuda_module": cuda_module}[module], function)
    pid = os.fork()
    if pid == 0:
        confine.libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        for fd in (1, 2):
            os.dup2(os.open(os.environ.get("FAKE_CUDA_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT), fd)
        slot.close_all_but({0, 1, 2, *fds})  # as a keeper does: a candidate reaches no other server
        torch.set_num_threads(1)  # a pool of threads that an earlier test started does not survive a fork, and waiting for it hangs
        try:
            run(None, payload, fds)
        finally:
            os._exit(1)
    SPAWNED.append(pid)
    return Child(pid)


@contextlib.contextmanager
def installed(monkeypatch):
    """Everything above in place of the driver, of `slot.spawn` and of device "cuda"."""
    for name, value in {
        "allocate_shared": allocate_shared, "map_shared": map_shared, "unmap_shared": lambda address, size: None, "allocate": allocate,
        "fill": lambda address, byte, size: ctypes.memset(address, byte, size), "synchronize": lambda: None, "start": lambda index=0: None,
        "facts": lambda index=0: dict(FACTS), "Events": Events, "Module": Module, "PreparedLaunch": PreparedLaunch, "compile_source": compile_source,
        "parameter_sizes": lambda function: None, "allow_shared": lambda function, size: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(cudriver, name, value)
    for module in (cuda_memory, cuda_module, cuda_plan, cuda_worker):
        monkeypatch.setattr(module, "tensor_at", tensor_at)
    monkeypatch.setattr(slot, "spawn", spawn)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda_module, "count_devices_by_driver", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8 << 30, 8 << 30))
    monkeypatch.setattr(torch, "compile", lambda module: module)
    # Two ends that poll need two idle cores
    monkeypatch.setattr(cuda_worker, "SPIN_S", 0.0)
    # Few calls: the machine that runs this is slow and busy, and no time is believed
    for module, counts in (
        (cuda_task, {"FIRST_BLOCK": 5, "NEXT_BLOCK": 3, "WALL_BLOCK": 3}),
        (cuda_closed, {"FIRST_BLOCK": 6, "NEXT_BLOCK": 5, "EMPTY_BLOCK": 8}),
    ):
        for name, value in counts.items():
            monkeypatch.setattr(module, name, value)
    with _OnTheHost():
        yield
