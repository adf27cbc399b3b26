"""Light `cuda_extension` on the CPU: kernels/*.cpp with extern "C" functions become one library, in the same isolation.

Cached by content (sources, flags, compiler, processor), failures too; only the judge writes the cache.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile

from data.records import Candidate, SandboxError, Status
from sandbox import slot, worker
from sandbox.backends import Failed
from sandbox.confine import Confinement

FLAGS = (
    "-O3", "-march=native", "-fopenmp", "-std=c++17", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math",
    "-fno-signed-zeros", "-fno-plt", "-D__FAST_MATH__=1", "-Wall", "-Wno-unknown-pragmas", "-fdiagnostics-color=never",
)  # fmt: skip
"""Fast arithmetic but honest NaN and infinities; __FAST_MATH__ only opens glibc's vectorised libm. No flag here links crtfastmath,
which would flush denormals in the whole process."""
LIBRARIES = ("-lmvec", "-lm")
MAX_LIBRARY = 64 << 20


IMPORTS_REFUSED = {
    "library_call": r"_Z\w*?(2at|3c10|5torch|8pybind11)[0-9NE]\w*|(aoti_torch|torch_|TH)\w*|(cublas|cudnn|cusparse|cusolver|cufft|nvrtc|cblas|mkl|MKL|dnnl|openblas)\w*|[sdcz]gemm\w*",
    "loader": r"_*(libc_)?(dlopen|dlsym|dlvsym|dlmopen|dl_iterate_phdr|dlopen_mode|mprotect|pkey_mprotect)",
    "process": r"_*(fork|vfork|execv\w*|execl\w*|fexecve|system|popen|posix_spawnp?|clone3?|daemon|ptrace|prctl|syscall|process_vm_\w+|timer_create|setitimer)",
    "files": r"_*(f|fre|fd)?open(64|at|at64)?(_2)?|_*creat(64)?|_*(socket|connect|bind|sendto|sendmsg|mmap|mmap64|memfd_create|shm_open)|_ZN?K?St\d+basic_[io]?f(stream|ilebuf)\w*",
}  # fmt: skip
"""Undefined dynamic symbols that no library of kernels needs, by rule. Macros can hide a name from a scan of the source, not from the linker."""


class MissingTool(ValueError):
    """The user's machine lacks a program that we need: one line, exit 2."""


def cache_folder(name: str) -> pathlib.Path:
    """A private folder (mode 0700) for `name` under the user's cache. Raises SandboxError."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = pathlib.Path(base) / "cuda-agent" / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        folder = pathlib.Path(tempfile.gettempdir()) / f"cuda-agent-{os.getuid()}" / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.parent.stat().st_uid != os.getuid():
            raise SandboxError(f"{folder.parent} belongs to somebody else") from None
    return folder


@functools.cache
def compiler_version() -> str:
    """First line of g++ --version. Raises MissingTool."""
    if not shutil.which("g++"):
        raise MissingTool("g++: not found on PATH, wanted a C++ compiler (package g++)")
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def strip_comments(source: str) -> str:
    """C++ without comments; string and character literals stay."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: " " if m.group().startswith("/") else m.group(), source, flags=re.S)


def exported(source: str) -> dict[str, list[tuple[str, str]]]:
    """extern "C" functions of a source and their arguments as (kind, C type). Raises Failed (format_error) on types we cannot pass."""
    text, found, spans = strip_comments(source), {}, []
    for match in re.finditer(r'extern\s*"C"\s*(\{)?', text):
        if match.group(1):
            depth, end = 1, match.end()
            while end < len(text) and depth:
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
            spans.append(_top_level(text[match.end() : end]))
        else:
            spans.append(re.split(r"[{;]", text[match.end() :], maxsplit=1)[0] + "{")
    for span in spans:
        for name, arguments in re.findall(r"\bvoid\s+(\w+)\s*\(([^()]*)\)\s*(?:noexcept\s*)?\{", span):
            found[name] = [_argument(name, part) for part in arguments.split(",") if part.strip() and part.strip() != "void"]
    return found


def _top_level(block: str) -> str:
    """A block with the bodies of its functions emptied."""
    kept, depth = [], 0
    for char in block:
        if char == "}":
            depth -= 1
        if depth <= 0:
            kept.append(char)
        if char == "{":
            depth += 1
    return "".join(kept)


def _argument(function: str, text: str) -> tuple[str, str]:
    words = re.sub(r"\b(const|volatile|restrict|__restrict__|__restrict|struct|std::)\b|std::", " ", text)
    pointer = "*" in words or "[" in words
    words = re.sub(r"\[[^\]]*\]", " ", words).replace("*", " * ").split()
    if "*" in words:
        words = words[: words.index("*")]
    elif len(words) > 1:
        words = words[:-1]
    kind = " ".join(words)
    kind = {"long int": "long", "long long int": "long long", "short int": "short"}.get(kind, kind)
    if pointer and kind in worker.POINTERS:
        return "pointer", kind
    if not pointer and kind in worker.INTEGERS:
        return "int", kind
    if not pointer and kind in worker.FLOATS:
        return "float", kind
    raise Failed(Status.FORMAT_ERROR, f"{function}: got argument type {text.strip()!r}, wanted tensor pointers, ints and floats")


def signatures(candidate: Candidate) -> dict[str, list[tuple[str, str]]]:
    """All extern "C" functions of kernels/*.cpp. Raises Failed when there is none."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, text in candidate.files.items():
        if name.startswith("kernels/") and name.endswith((".cpp", ".cc", ".cxx")):
            found |= exported(text)
    if not found:
        raise Failed(Status.FORMAT_ERROR, 'kernels/ has no function `extern "C" void name(...)`')
    return found


def build(candidate: Candidate, *, index: int, seconds: float, memory_bytes: int, cpu: str) -> tuple[bytes, dict]:
    """Library bytes and signatures. Raises Failed (format_error, compile_error, compile_timeout, rejected)."""
    functions = signatures(candidate)
    files = {n: t for n, t in candidate.files.items() if n.startswith("kernels/")}
    units = sorted(n for n in files if n.endswith((".cpp", ".cc", ".cxx")))
    command = ["g++", *FLAGS, "-o", "library.so", *units, *LIBRARIES]
    key = hashlib.sha256(json.dumps([files, command, compiler_version(), cpu], sort_keys=True).encode()).hexdigest()
    folder = cache_folder("builds")
    library, failure = folder / f"{key}.so", folder / f"{key}.json"
    if library.exists():
        return check_imports(library.read_bytes()), functions
    if failure.exists():
        raise _compile_error(json.loads(failure.read_text())["log"])
    confinement = Confinement(index=index, memory_bytes=memory_bytes, cpu_s=int(seconds) + 5, may_exec=True, collect="library.so")
    child = slot.spawn("sandbox.worker:compiler", {"files": files, "command": command}, confinement=confinement)
    report = child.wait(seconds)
    if report is None:
        child.close()
        raise Failed(Status.COMPILE_TIMEOUT, f"the compiler did not end within {seconds:g} s")
    fd = child.collected
    child.close()
    if report["status"] == 0 and fd is not None:
        data = _read(fd)
        _write(library, data)
        return check_imports(data), functions
    if report.get("lost"):
        raise SandboxError("the keeper of a build was lost")
    if "error:" in report["log"]:
        _write(failure, json.dumps({"log": report["log"]}).encode())
    raise _compile_error(report["log"])


def undefined_symbols(library: bytes) -> list[str]:
    """Names that a 64-bit little-endian ELF library wants from others (its .dynsym). Raises ValueError for anything else."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("got no 64-bit little-endian ELF file")
    try:
        offset, size, count = struct.unpack_from("<Q", library, 40)[0], *struct.unpack_from("<HH", library, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", library, offset + size * n) for n in range(count)]
        if all(kind != 11 for _, kind, *_ in sections):
            raise ValueError("no table of dynamic symbols")
        found = []
        for _, kind, _, _, start, length, link, _, _, _ in sections:
            if kind != 11:  # SHT_DYNSYM
                continue
            strings = library[sections[link][4] :][: sections[link][5]]
            for position in range(start + 24, start + length, 24):
                name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", library, position)
                if section == 0:
                    found.append(strings[name : strings.index(b"\0", name)].decode("ascii", "replace"))
        return found
    except (struct.error, OverflowError, IndexError, ValueError) as error:
        raise ValueError(f"got a broken ELF file: {error}") from None


def check_imports(library: bytes) -> bytes:
    """The library, where it wants nothing of another library's work, of the loader or of processes. Raises Failed (rejected, compile_error)."""
    try:
        wanted = undefined_symbols(library)
    except ValueError as error:
        raise Failed(Status.COMPILE_ERROR, f"library: {error}") from None
    for symbol in wanted:
        if rule := refused_symbol(symbol):
            raise Failed(Status.REJECTED, f"the built library calls {symbol}, which has no place in a kernel", rule=rule)
    return library


def refused_symbol(name: str) -> str | None:
    """The rule that a dynamic symbol breaks, or None."""
    return next((rule for rule, pattern in IMPORTS_REFUSED.items() if re.fullmatch(pattern, name)), None)


def _compile_error(log: str) -> Failed:
    lines = [line for line in log.splitlines() if "error" in line] or log.splitlines() or ["the compiler failed without a word"]
    return Failed(Status.COMPILE_ERROR, lines[0].strip()[:300], log=log)


def _read(fd: int) -> bytes:
    """The compiler's product is untrusted: a plain file of a sane size, or it is not read."""
    import stat

    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_LIBRARY:
            raise Failed(Status.COMPILE_ERROR, f"the library is no plain file of at most {MAX_LIBRARY} bytes")
        return file.read()


def _write(path: pathlib.Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)
