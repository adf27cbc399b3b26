"""The untrusted side: loads a candidate (or a reference) in its confined process and answers calls.

Nothing here is believed. What the judge takes from this process is bytes that it reads out of the stopped process itself, at
addresses the process names in the header page; a wrong name gives wrong bytes.

A call: the judge writes inputs while every thread is stopped, lets the process go on, and is told by SIGTRAP that it has answered.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import linecache
import mmap
import os
import signal
import socket
import struct
import sys
import traceback
import types

from sandbox.structure import MOST, flatten

HEADER = 65536
"""Bytes of the header page(s) before the input slots."""
MAX_DIMS = 8
OUTPUT = struct.Struct(f"<QqqI{MAX_DIMS}q{MAX_DIMS}q")
"""pointer, dtype code, number of dimensions, unused, shape, stride (elements)."""
BUFFERS = 64 + MOST * OUTPUT.size
"""Where the descriptions of the watched buffers begin in the header, one OUTPUT each."""
MAX_BUFFERS = (HEADER - BUFFERS) // OUTPUT.size
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128",
)  # fmt: skip
ANSWERED, RAISED, BAD_OUTPUT = 1, 2, 3
POINTERS = {
    "float": ("float32",), "double": ("float64",), "int": ("int32",), "int32_t": ("int32",), "long long": ("int64",), "long": ("int64",),
    "int64_t": ("int64",), "short": ("int16",), "int16_t": ("int16",), "signed char": ("int8",), "int8_t": ("int8",), "bool": ("bool",),
    "unsigned char": ("uint8", "bool"), "uint8_t": ("uint8", "bool"), "uint16_t": ("bfloat16", "float16"), "unsigned short": ("bfloat16", "float16"),
    "_Float16": ("float16",), "__bf16": ("bfloat16",), "void": DTYPES,
}  # fmt: skip
"""C element type of a pointer argument -> tensor dtypes it takes."""
INTEGERS = {
    "int": ctypes.c_int, "int32_t": ctypes.c_int32, "long": ctypes.c_long, "long long": ctypes.c_longlong, "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t, "unsigned": ctypes.c_uint, "unsigned int": ctypes.c_uint, "uint32_t": ctypes.c_uint32, "bool": ctypes.c_bool,
    "uint64_t": ctypes.c_uint64, "unsigned long": ctypes.c_ulong, "unsigned long long": ctypes.c_ulonglong,
}  # fmt: skip
FLOATS = {"float": ctypes.c_float, "double": ctypes.c_double}


def preload() -> None:
    """Modules that a ModelNew may import lazily: loaded in the zygote, where the whole file system can still be read."""
    for name in (
        "torch.nn.functional",
        "torch.utils.cpp_extension",
        "typing",
        "dataclasses",
        "functools",
        "itertools",
        "collections",
        "math",
        "numpy",
    ):
        importlib.import_module(name)


def extension_module(library: str, functions: dict[str, list[tuple[str, str]]]) -> types.ModuleType:
    """`cuda_extension`: one Python function for each extern "C" function. Arguments: (kind, C type), kind pointer, int or float."""
    loaded, module = ctypes.CDLL(library), types.ModuleType("cuda_extension")
    for name, arguments in functions.items():
        entry = getattr(loaded, name)
        entry.restype = None
        entry.argtypes = [{"pointer": ctypes.c_void_p}.get(kind) or (INTEGERS | FLOATS)[c] for kind, c in arguments]
        setattr(module, name, _wrap(name, entry, arguments))
    return module


def _wrap(name: str, entry, arguments: list[tuple[str, str]]):
    import torch

    wanted = [tuple(getattr(torch, d) for d in POINTERS[c]) if kind == "pointer" else None for kind, c in arguments]
    count = len(arguments)

    def call(*values):
        if len(values) != count:
            raise TypeError(f"{name}: got {len(values)} arguments, wanted {count}")
        raw = []
        for position, (value, dtypes) in enumerate(zip(values, wanted, strict=True)):
            if dtypes is None:
                if isinstance(value, torch.Tensor):
                    raise TypeError(f"{name}, argument {position}: got a tensor, wanted a number")
                raw.append(value)
            elif not isinstance(value, torch.Tensor):
                raise TypeError(f"{name}, argument {position}: got {type(value).__name__}, wanted a tensor")
            elif value.dtype not in dtypes:
                raise TypeError(f"{name}, argument {position}: got {value.dtype}, wanted {' or '.join(map(str, dtypes))}")
            elif not value.is_contiguous():
                raise TypeError(f"{name}, argument {position}: got a tensor that is not contiguous, call .contiguous() first")
            else:
                raw.append(value.data_ptr())
        try:
            entry(*raw)
        except ctypes.ArgumentError as error:
            raise TypeError(f"{name}: {error}") from None

    call.__name__ = name
    return call


def load_module(name: str, source: str, path: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = path
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def load_state(model, state: dict) -> list[str]:
    """Give the model the judge's parameters and buffers, by name, else by order and shape. Raises KeyError."""
    own = model.state_dict()
    if own.keys() == state.keys():
        model.load_state_dict(state)
        return []
    mine, given = list(own.items()), list(state.items())
    if [tuple(v.shape) for _, v in mine] != [tuple(v.shape) for _, v in given]:
        raise KeyError(f"parameters: got {[(k, tuple(v.shape)) for k, v in mine]}, wanted {[(k, tuple(v.shape)) for k, v in given]}")
    model.load_state_dict({name: value for (name, _), (_, value) in zip(mine, given, strict=True)})
    return ["weights_by_shape"]


def watched(model, state: dict, names: list[str]) -> list[tuple]:
    """(module, attribute) of the model's own buffers that stand for `names` of the judge's state: by name, else by order."""
    own = list(model.state_dict())
    found = names if set(own) == set(state) else [own[list(state).index(name)] for name in names]
    return [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in found]


def say(channel: socket.socket, **message) -> None:
    data = json.dumps(message).encode()[:60000]
    channel.sendall(struct.pack("<I", len(data)) + data)


def build_model(payload: dict, library: str | None):
    """The candidate's module on the CPU, its flags, and its buffers whose changes are compared."""
    import torch

    for path, text in payload["files"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    sys.path.insert(0, os.getcwd())
    os.environ["TORCH_EXTENSIONS_DIR"] = os.getcwd() + "/extensions"
    if library:
        sys.modules["cuda_extension"] = extension_module(library, payload["functions"])
    module = load_module(payload["module"], payload["files"][payload["module"] + ".py"], os.getcwd() + f"/{payload['module']}.py")
    init = torch.load(io.BytesIO(payload["init"]), weights_only=False)
    model = getattr(module, payload["class"])(*init)
    if payload["dtype"]:
        model = model.to(getattr(torch, payload["dtype"]))
    state = torch.load(io.BytesIO(payload["state"]), weights_only=False)
    flags = load_state(model, state)
    buffers = watched(model, state, payload["watched"])
    model.train(payload["train"])
    if payload.get("compile"):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = payload["compile"]
        if not os.access(payload["headers"], os.R_OK | os.X_OK):
            # Without a root of its own this child cannot look into the judge's cache
            torch._inductor.config.cpp_cache_precompile_headers = False
        model = torch.compile(model)
    return model, flags, buffers


def kind_of(error: BaseException) -> str:
    text = str(error)
    if "Error building extension" in text or "Ninja" in text:
        return "compile"
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "Cannot allocate memory" in text:
        return "memory"
    return "raised"


def serve(channel: socket.socket, payload: dict, fds: list[int]) -> None:
    """Role of candidates and references on the CPU. fds: shared memory, then the library if there is one."""
    import torch

    for name in [m for m in sys.modules if m.split(".")[0] in ("sandbox", "data") and m != __name__]:
        del sys.modules[name]
    torch.set_num_threads(payload["threads"])
    os.environ["OMP_NUM_THREADS"] = str(payload["threads"])
    try:
        memory = mmap.mmap(fds[0], 0)
        os.close(fds[0])
        library = None
        if len(fds) > 1:
            library = f"/proc/self/fd/{fds[1]}"
        model, flags, buffers = build_model(payload, library)
    except KeyError as error:
        say(channel, error="state" if "parameters:" in str(error) else "raised", text=str(error.args[0]) if error.args else "KeyError")
        os._exit(1)
    except BaseException as error:  # every failure of a candidate's construction is told to the judge in words
        traceback.print_exc()
        say(channel, error=kind_of(error), text=f"{type(error).__name__}: {error}")
        os._exit(1)
    slots = [[_view(torch, memory, item) for item in slot] for slot in payload["slots"]]
    say(channel, ready=True, flags=flags)
    channel.recv(1)
    with torch.no_grad():
        floating = getattr(torch, payload["dtype"] or "float32")
        loop(channel, memory, model, slots, payload["structure"], floating, buffers)


def _view(torch, memory: mmap.mmap, item):
    if not isinstance(item, dict):
        return item[0]
    dtype = getattr(torch, item["dtype"])
    if not item["elements"]:  # frombuffer refuses a count of 0
        return torch.empty_strided(item["shape"], item["stride"], dtype=dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=item["elements"], offset=item["offset"])
    return flat.as_strided(item["shape"], item["stride"])


def describe(memory: mmap.mmap, place: int, tensor, codes: dict) -> None:
    """Tell the judge where a tensor stands and what it looks like."""
    shape, stride = tuple(tensor.shape), tensor.stride()
    pad = (0,) * (MAX_DIMS - len(shape))
    OUTPUT.pack_into(memory, place, tensor.data_ptr(), codes[tensor.dtype], len(shape), 0, *shape, *pad, *stride, *pad)


def loop(channel, memory: mmap.mmap, model, slots: list[list], structure: str, floating, buffers: list[tuple]) -> None:
    import torch

    codes = {getattr(torch, name): code for code, name in enumerate(DTYPES)}
    out = None
    while True:
        # New tensors for each call, made while no clock runs: one that reshapes its input in place must not meet its own work again
        fresh = [[v.detach() if isinstance(v, torch.Tensor) else v for v in slot] for slot in slots]
        signal.raise_signal(signal.SIGTRAP)
        slot = memory[8]
        out = None
        try:
            out = model(*fresh[slot])
            answers, problem = contract(torch, out, structure, floating)
            if problem:
                say(channel, error="contract", text=problem)
                struct.pack_into("<q", memory, 0, BAD_OUTPUT)
                continue
            for number, answer in enumerate(answers):
                describe(memory, 64 + number * OUTPUT.size, answer, codes)
            for number, (module, name) in enumerate(buffers):
                describe(memory, BUFFERS + number * OUTPUT.size, getattr(module, name), codes)
            struct.pack_into("<q", memory, 0, ANSWERED)
        except Exception as error:  # a call that raises is told to the judge in words
            traceback.print_exc()
            say(channel, error=kind_of(error), text=f"{type(error).__name__}: {error}")
            struct.pack_into("<q", memory, 0, RAISED)


def contract(torch, out, structure: str, floating) -> tuple[list, str | None]:
    """Tensors of an output, and what is wrong with its type, or None. The judge checks shape, dtype and strides by itself."""
    try:
        answers, found = flatten(out, floating)
    except TypeError as error:
        return [], str(error)
    if found != structure:
        return [], f"output: got {found[:300]}, wanted {structure[:300]}"
    for number, answer in enumerate(answers):
        if type(answer) is not torch.Tensor:
            return [], f"output {number}: got {type(answer).__name__}, wanted exactly torch.Tensor"
        if answer.layout is not torch.strided or answer.device.type != "cpu" or answer.is_conj() or answer.is_neg():
            return [], f"output {number}: got a {answer.layout} tensor on {answer.device.type}, wanted a plain strided one on cpu"
        if answer.dim() > MAX_DIMS:
            return [], f"output {number}: got {answer.dim()} dimensions, wanted at most {MAX_DIMS}"
    return answers, None


def nothing(channel: socket.socket, payload: dict, fds: list[int]) -> None:
    """A role that ends at once: does a child come up, and at which level?"""


def idle(channel: socket.socket, payload: dict, fds: list[int]) -> None:
    """The fastest server there is: answers without doing anything. Its round trip is what the clock itself costs."""
    os.close(fds[0])
    say(channel, ready=True, flags=[])
    channel.recv(1)
    ring, trap = signal.raise_signal, signal.SIGTRAP
    while True:
        ring(trap)


def compiler(channel: socket.socket, payload: dict, fds: list[int]) -> None:
    """Role of a build: becomes the compiler. Its messages are the log, its product is collected by the keeper."""
    for path, text in payload["files"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    os.environ["LC_ALL"] = "C"
    channel.close()
    os.execvp(payload["command"][0], payload["command"])
