"""Static check: formats, policy, tripwires. It explains itself and refuses early; it is never what security rests on.

Policy works by allow-list: what runs in forward may allocate, view, copy and call own kernels, nothing else. `mixed` asks for
the format only.
"""

from __future__ import annotations

import ast
import re

from data.records import Candidate, Status
from sandbox import hostcode
from sandbox.backends import Failed
from sandbox.build import refused_symbol, strip_comments
from sandbox.hostcode import reject

CPP_TOKENS = {
    "process": r"(?<![.>\w])(fork|vfork|execve?[lvpe]*|system|popen|posix_spawnp?|clone3?|daemon|wait(pid|id)?|kill|tgkill|raise|ptrace|prctl|sigaction|signal|setitimer|timer_create|syscall|process_vm_\w+)\s*\(",
    "loader": r"(?<![.>\w])(dlopen|dlsym|dlmopen|dl_iterate_phdr|mprotect|LD_PRELOAD)\b",
    "files": r"((?<![.>\w])(fopen|freopen|open|openat|socket|connect|sendto|sendmsg|ifstream|ofstream|fstream|mmap|memfd_create|shm_open)\s*[({<]|/proc\b|\.incbin\b)",
    "python": r"\b(Py_\w+|PyObject|PyRun_\w+|PyEval_\w+)\b",
}
LIBRARY_TOKENS = r"\b(cblas_\w+|mkl_\w+|dnnl\w*|sgemm_?|dgemm_?|Eigen)\b|#\s*include\s*[<\"](ATen|torch|c10|cblas|mkl|dnnl|Eigen)"
TORCH_CPP_ALLOWED = {
    "Tensor", "empty", "empty_like", "zeros", "zeros_like", "TensorOptions", "kFloat", "kFloat32", "kDouble", "kHalf", "kBFloat16", "kInt", "kLong", "kBool", "kCPU",
    "kCUDA", "ScalarType", "IntArrayRef", "MemoryFormat", "Device", "dtype", "device", "parallel_for", "get_num_threads", "Half", "BFloat16", "optional", "cuda",
    "ArrayRef", "TensorAccessor", "NoGradGuard", "vec", "PackedTensorAccessor32", "PackedTensorAccessor64", "RestrictPtrTraits", "DefaultPtrTraits", "kInt64", "kInt32",
    "kInt16", "kInt8", "kUInt8", "kFloat16", "kFloat64", "full", "ones", "empty_strided", "DeviceGuard", "device_of", "opmath_type", "acc_type", "ceil_div",
}  # fmt: skip


def check_candidate(candidate: Candidate, *, policy: str, backend: str = "cpp") -> None:
    """Raises Failed: format_error (not Python, no ModelNew) or rejected (`rule` names what was broken)."""
    if "model_new.py" not in candidate.files:
        raise Failed(Status.FORMAT_ERROR, f"got files {sorted(candidate.files)}, wanted model_new.py")
    trees = {}
    for name, text in candidate.files.items():
        if name.endswith(".py"):
            try:
                trees[name] = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise Failed(Status.FORMAT_ERROR, f"{name} is not Python: {error}") from None
    main = next((n for n in trees["model_new.py"].body if isinstance(n, ast.ClassDef) and n.name == "ModelNew"), None)
    if main is None:
        raise Failed(Status.FORMAT_ERROR, "model_new.py defines no class ModelNew")
    if not any(isinstance(n, ast.FunctionDef) and n.name == "forward" for n in main.body):
        raise Failed(Status.FORMAT_ERROR, "ModelNew has no method forward")
    if policy == "mixed":
        return
    hostcode.check(trees, check_inline)
    for name, text in candidate.files.items():
        # What lies under kernels/ can be included by C++, whatever it is called
        if name.startswith("kernels/") or not name.endswith((".py", ".json")):
            check_cpp(name, text, backend=backend)


def check_cpp(name: str, source: str, *, backend: str = "cpp") -> None:
    """Tokens of a C or C++ source. Raises Failed."""
    text = strip_comments(source)
    named = re.findall(r"\bstatic\s+(?:inline\s+)?[\w:<>]+[\s*&]+(\w+)\s*\([^(){};]*\)\s*\{", text)
    # A static function may be called `open`: which one is called, the symbols of a light library tell
    _tokens(name, text, frozenset(n for n in named if backend == "cpp" and refused_symbol(n)))
    if name.endswith((".cpp", ".cc", ".cxx", ".h", ".hpp", ".inl")) and (found := re.search(LIBRARY_TOKENS, text)):
        raise reject("library_call", f"{name}: {found.group()!r} is a library's work, not a kernel's")


def _tokens(name: str, text: str, own: frozenset[str] = frozenset()) -> None:
    for rule, pattern in CPP_TOKENS.items():
        for found in re.finditer(pattern, text):
            called = re.match(r"\w+", found.group())
            if not (called and called.group() in own):
                raise reject(rule, f"{name}: {found.group().strip()!r} has no place in a kernel")


def check_inline(name: str, source: str) -> None:
    """Tokens of C++ inside a load_inline string: torch's headers are there, its operators may not be called. Raises Failed."""
    text = strip_comments(source)
    _tokens(name, text)
    for called in re.findall(r"\b(?:at|torch)\s*::\s*(\w+)", text):
        if called not in TORCH_CPP_ALLOWED:
            raise reject("library_call", f"{name}: C++ calls torch::{called}")
