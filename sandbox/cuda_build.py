"""Light `cuda_extension` on the GPU: kernels/*.cu with extern "C" host functions become one library by nvcc, in the same isolation.

Cached by content (sources, command), failures too; only the judge writes the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil

from data.records import Candidate, SandboxError, Status
from sandbox import build, slot
from sandbox.backends import Failed
from sandbox.confine import Confinement

FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")


def nvcc() -> str | None:
    """Path of nvcc, None without a toolkit."""
    default = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    return shutil.which("nvcc") or (default if os.path.exists(default) else None)


def build_library(candidate: Candidate, *, arch: str, index: int, seconds: float) -> tuple[bytes, dict]:
    """Library bytes and the signatures of its functions. Raises Failed (format_error, compile_error, compile_timeout), SandboxError."""
    compiler = nvcc()
    if compiler is None:
        raise build.MissingTool("nvcc: not found on PATH, wanted the CUDA toolkit (or a candidate in the format plan or cupy)")
    files = {name: text for name, text in candidate.files.items() if name.startswith("kernels/")}
    units = sorted(name for name in files if name.endswith((".cu", ".cpp", ".cc")))
    functions: dict = {}
    for name in units:
        functions |= build.exported(files[name])
    if not functions:
        raise Failed(Status.FORMAT_ERROR, 'kernels/ has no function `extern "C" void name(...)`')
    command = [compiler, *FLAGS, f"-arch={arch}", "-o", "library.so", *units]
    key = hashlib.sha256(json.dumps([files, command], sort_keys=True).encode()).hexdigest()
    folder = build.cache_folder("builds")
    library, failure = folder / f"{key}.so", folder / f"{key}.json"
    if library.exists():
        return library.read_bytes(), functions
    if failure.exists():
        raise build._compile_error(json.loads(failure.read_text())["log"])
    around = Confinement(index=index, memory_bytes=16 << 30, processes=256, cpu_s=int(seconds) + 5, may_exec=True, collect="library.so")
    child = slot.spawn("sandbox.worker:compiler", {"files": files, "command": command}, confinement=around)
    report = child.wait(seconds)
    if report is None:
        child.close()
        raise Failed(Status.COMPILE_TIMEOUT, f"the compiler did not end within {seconds:g} s")
    descriptor = child.collected
    child.close()
    if report.get("lost"):
        raise SandboxError("the keeper of a build was lost")
    if report["status"] == 0 and descriptor is not None:
        data = build._read(descriptor)
        build._write(library, data)
        return data, functions
    if "error" in report["log"]:
        build._write(failure, json.dumps({"log": report["log"]}).encode())
    raise build._compile_error(report["log"])
