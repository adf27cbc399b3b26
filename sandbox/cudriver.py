"""The few calls of the CUDA driver and of NVRTC that the judge needs, by ctypes. Importing this touches no GPU and no torch.

Every function raises CudaError with the driver's error name. Pointers and handles are plain integers. Stream 0 is used throughout.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
import pathlib

OUT_OF_MEMORY = 2
_ATTRIBUTES = {
    "multiprocessors": 16, "clock_khz": 13, "memory_clock_khz": 36, "memory_bus_bits": 37, "l2_bytes": 38, "major": 75, "minor": 76,
    "shared_bytes": 97, "posix_fd": 103,
}  # fmt: skip


class CudaError(RuntimeError):
    """A driver or NVRTC call failed; `code` is its number, `log` the compiler's text."""

    def __init__(self, call: str, code: int, name: str, log: str = ""):
        super().__init__(f"{call}: {name} ({code})")
        self.code, self.name, self.log = code, name, log


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError("libcuda.so.1", 100, f"no NVIDIA driver: {error}") from None


def call(name: str, *args) -> None:
    """One driver call; integers travel as 64 bits unless wrapped in a ctypes type."""
    code = getattr(_driver(), name)(*(ctypes.c_uint64(a) if type(a) is int else a for a in args))
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(name, code, (text.value or b"unknown").decode())


def _get(kind, name: str, *args):
    value = kind()
    call(name, ctypes.byref(value), *args)
    return value.value


def start(index: int = 0) -> None:
    """Primary context of device `index` current on this thread."""
    call("cuInit", ctypes.c_uint(0))
    device = _get(ctypes.c_int, "cuDeviceGet", ctypes.c_int(index))
    context = _get(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", ctypes.c_int(device))
    call("cuCtxSetCurrent", context)


def facts(index: int = 0) -> dict[str, int | str]:
    """Name, UUID, compute capability, sizes and clocks of the device. Initialises the driver but makes no context."""
    call("cuInit", ctypes.c_uint(0))
    device = ctypes.c_int(_get(ctypes.c_int, "cuDeviceGet", ctypes.c_int(index)))
    name, uuid = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16)
    call("cuDeviceGetName", name, ctypes.c_int(128), device)
    call("cuDeviceGetUuid", uuid, device)
    found = {key: _get(ctypes.c_int, "cuDeviceGetAttribute", ctypes.c_int(number), device) for key, number in _ATTRIBUTES.items()}
    raw = uuid.raw.hex()
    found["name"] = name.value.decode()
    found["uuid"] = f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
    found["memory_bytes"] = _get(ctypes.c_size_t, "cuDeviceTotalMem_v2", device)
    found["driver"] = _get(ctypes.c_int, "cuDriverGetVersion")
    found["arch"] = f"sm_{found['major']}{found['minor']}"
    return found


def peak_bandwidth(found: dict) -> float:
    """Theoretical bytes a second: two transfers a clock over the bus."""
    return 2 * found["memory_clock_khz"] * 1e3 * found["memory_bus_bits"] / 8


# ---- memory that another process can map ----


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    _fields_ = (("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4))


class _AllocationProp(ctypes.Structure):
    """CUmemAllocationProp of cuda.h."""

    _fields_ = (("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", _Location), ("win32", ctypes.c_void_p), ("flags", _Flags))


class _AccessDesc(ctypes.Structure):
    """CUmemAccessDesc of cuda.h."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_PINNED = _DEVICE = _POSIX_FD = 1
_READ_WRITE = 3


def allocate_shared(size: int, index: int = 0) -> tuple[int, int, int]:
    """(address, bytes, file descriptor) of new device memory that `map_shared` opens in another process."""
    prop = _AllocationProp(type=_PINNED, handles=_POSIX_FD, location=_Location(_DEVICE, index))
    grain = _get(ctypes.c_size_t, "cuMemGetAllocationGranularity", ctypes.byref(prop), ctypes.c_int(0))
    size = -(-size // grain) * grain
    handle = ctypes.c_uint64()
    call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(0))
    try:
        descriptor = _get(ctypes.c_int, "cuMemExportToShareableHandle", handle, ctypes.c_int(_POSIX_FD), ctypes.c_uint64(0))
        address = _map(handle, size, index)
    finally:
        # The mapping and the descriptor keep the memory alive
        call("cuMemRelease", handle)
    return address, size, descriptor


def map_shared(descriptor: int, size: int, index: int = 0) -> int:
    """Address of another process's memory in this one."""
    handle = ctypes.c_uint64()
    call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), ctypes.c_int(_POSIX_FD))
    address = _map(handle, size, index)
    call("cuMemRelease", handle)
    return address


def _map(handle: ctypes.c_uint64, size: int, index: int) -> int:
    address = _get(
        ctypes.c_uint64, "cuMemAddressReserve", ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0)
    )
    call("cuMemMap", address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
    access = _AccessDesc(location=_Location(_DEVICE, index), flags=_READ_WRITE)
    call("cuMemSetAccess", address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
    return address


def unmap_shared(address: int, size: int) -> None:
    call("cuMemUnmap", address, ctypes.c_size_t(size))
    call("cuMemAddressFree", address, ctypes.c_size_t(size))


def allocate(size: int) -> int:
    return _get(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(max(size, 1)))


def fill(address: int, byte: int, size: int) -> None:
    """Asynchronous on stream 0."""
    call("cuMemsetD8Async", address, ctypes.c_ubyte(byte), ctypes.c_size_t(size), 0)


def copy(target: int, source: int, size: int) -> None:
    """Device to device, asynchronous on stream 0."""
    call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(size), 0)


def synchronize() -> None:
    call("cuCtxSynchronize")


class Events:
    """A pair of events around what is enqueued between `start` and `stop`."""

    def __init__(self):
        self.first, self.last = (_get(ctypes.c_void_p, "cuEventCreate", ctypes.c_uint(0)) for _ in range(2))

    def start(self) -> None:
        call("cuEventRecord", self.first, 0)

    def stop(self) -> None:
        call("cuEventRecord", self.last, 0)

    def elapsed_ms(self) -> float:
        """After a synchronize."""
        return _get(ctypes.c_float, "cuEventElapsedTime", self.first, self.last)


# ---- modules and launches ----


class Module:
    """Device code loaded into the current context."""

    def __init__(self, image: bytes):
        self.handle = _get(ctypes.c_void_p, "cuModuleLoadData", ctypes.c_char_p(image))

    def function(self, name: str) -> int:
        return _get(ctypes.c_void_p, "cuModuleGetFunction", self.handle, ctypes.c_char_p(name.encode()))


def parameter_sizes(function: int, most: int = 256) -> list[int] | None:
    """Bytes of each parameter as compiled; None where the driver is older than 12.4."""
    if not hasattr(_driver(), "cuFuncGetParamInfo"):
        return None
    sizes = []
    for i in range(most):
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        if _driver().cuFuncGetParamInfo(ctypes.c_void_p(function), ctypes.c_size_t(i), ctypes.byref(offset), ctypes.byref(size)):
            break
        sizes.append(size.value)
    return sizes


def allow_shared(function: int, size: int) -> None:
    """Raise the limit of dynamic shared memory above the default 48 KiB."""
    if size > 48 * 1024:
        call("cuFuncSetAttribute", function, ctypes.c_int(8), ctypes.c_int(size))


class PreparedLaunch:
    """A launch with its parameter block built once, so that a call costs a few microseconds."""

    def __init__(self, function: int, grid: tuple, block: tuple, shared: int, values: list):
        """`values` are ctypes scalars in the order of the kernel's parameters."""
        self.values = values
        self.block = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(v) for v in values))
        self.args = (
            ctypes.c_void_p(function),
            *(ctypes.c_uint(v) for v in (*grid, *block, shared)),
            ctypes.c_void_p(0),
            self.block,
            ctypes.c_void_p(0),
        )
        self.launch = _driver().cuLaunchKernel

    def __call__(self) -> None:
        code = self.launch(*self.args)
        if code:
            raise CudaError("cuLaunchKernel", code, "launch refused")


# ---- NVRTC ----


def _library_folders() -> list[pathlib.Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = [pathlib.Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    found = [pathlib.Path(p) for root in roots for p in sorted(glob.glob(f"{root}/*"), reverse=True)]
    return [*found, pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """The newest libnvrtc found beside torch, in the toolkit or on the loader's path. Raises CudaError."""
    names = [str(path) for folder in _library_folders() for path in sorted(folder.glob("lib*/libnvrtc.so.1[0-9]"), reverse=True)]
    for name in [*names, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            # NVRTC opens its builtins by bare name: found if already loaded
            for builtins in sorted(pathlib.Path(name).parent.glob("libnvrtc-builtins.so.*")) if "/" in name else []:
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError("libnvrtc", 100, "not found")


@functools.cache
def include_folders() -> tuple[str, ...]:
    """Folders with cuda_fp16.h and with the headers that cooperative groups need, for NVRTC's #include."""
    found = next((f / "include" for f in _library_folders() if (f / "include" / "cuda_fp16.h").exists()), None)
    return tuple(str(f) for f in ((found, found / "cccl") if found else ()) if f.exists())


def compile_source(source: str, arch: str, options: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """CUDA C++ text to a cubin for `arch` (for example sm_90), and the compiler's log. Raises CudaError with the log.

    Example: compile_source('extern "C" __global__ void f(float* y) { y[0] = 1; }', "sm_90")
    """
    library = nvrtc()
    program = ctypes.c_void_p()
    _nvrtc("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    try:
        flags = [f"--gpu-architecture={arch}", "--std=c++17", "-lineinfo"]
        flags = [*flags, *(f"--include-path={folder}" for folder in include_folders()), *options]
        array = (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
        code = library.nvrtcCompileProgram(program, len(flags), array)
        log = _text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode(errors="replace").strip("\0\n ")
        if code:
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CudaError("nvrtcCompileProgram", code, library.nvrtcGetErrorString(code).decode(), log)
        return _text(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc(name: str, *args) -> None:
    code = getattr(nvrtc(), name)(*args)
    if code:
        raise CudaError(name, code, "failed")


def _text(program: ctypes.c_void_p, size_name: str, get_name: str) -> bytes:
    size = ctypes.c_size_t()
    _nvrtc(size_name, program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    _nvrtc(get_name, program, buffer)
    return buffer.raw[: size.value]
