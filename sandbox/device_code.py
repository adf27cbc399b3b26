"""What may stand in a plan's kernels.cu: which directives and includes, and the signatures of its entries.

The text is read before the compiler sees it, because an include of any other path would read the judge's files into the log.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

INCLUDES = frozenset(
    ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "cooperative_groups.h", "cooperative_groups/reduce.h", "cooperative_groups/scan.h", "cooperative_groups/memcpy_async.h", "cuda_pipeline.h", "math_constants.h"]
)
PRELUDE = """#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define FLT_MAX 3.402823466e+38f
#define FLT_EPSILON 1.192092896e-07f
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned char uint8_t;
#line 1 "kernels.cu"
"""
"""NVRTC has no math.h, float.h or stdint.h: what kernels commonly take from them."""
_DIRECTIVES = frozenset(["define", "undef", "if", "ifdef", "ifndef", "else", "elif", "endif", "include"])
_SCALARS = dict.fromkeys(("int", "signed int", "unsigned", "unsigned int", "int32_t", "uint32_t"), ("int", 4))
_SCALARS |= dict.fromkeys(("long long", "long long int", "unsigned long long", "long", "unsigned long", "size_t"), ("int", 8))
_SCALARS |= {"int64_t": ("int", 8), "uint64_t": ("int", 8), "bool": ("int", 1), "float": ("float", 4), "double": ("float", 8)}


class PlanError(ValueError):
    """The candidate's files are not a plan: a format_error."""


def want(condition: bool, where: str, got: Any, wanted: str) -> None:
    """PlanError("where: got X, wanted Y") unless condition."""
    if not condition:
        text = repr(got)
        raise PlanError(f"{where}: got {text[:120]}{'...' if len(text) > 120 else ''}, wanted {wanted}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a kernel: kind pointer, int or float, and its bytes."""

    kind: str
    bytes: int
    text: str


def strip(source: str) -> str:
    """Source without comments and line continuations, string and character literals kept. The ways around it are refused."""
    for trick in ("??=", "%:", "??/"):
        want(trick not in source, "kernels.cu", trick, "no digraphs or trigraphs")
    source = re.sub(r"\\[ \t\v\f\r]*\n", "", source)
    for word in (r'\b(u8|u|U|L)?R"', r"\b\d[\w.]*'", r"\b_Pragma\b", r"\b__has_include\b", r"\b__has_embed\b"):
        found = re.search(word, source)
        want(found is None, "kernels.cu", found and found[0], "no raw strings, digit separators, _Pragma, __has_include, __has_embed")
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
    # An unmatched quote would let this reading and the compiler's differ about what is a comment
    want(re.search("[\"']", token.sub(" ", source)) is None, "kernels.cu", "an unmatched quote", "balanced quotes")
    return token.sub(lambda m: m[0] if m[0][0] in "\"'" else " ", source)


def check_directives(plain: str) -> None:
    """Only the directives of _DIRECTIVES, `#pragma unroll` and the headers of INCLUDES, in text without comments."""
    for line in re.split(r"[\n\r]", plain):
        found = re.match(r"\s*#\s*(\w*)\s*(.*)", line)
        if found is None or not found[1]:
            continue
        if found[1] == "pragma":
            want(re.match(r"(unroll|once)\b", found[2]) is not None, "kernels.cu", f"#pragma {found[2]}", "#pragma unroll or once")
            continue
        want(found[1] in _DIRECTIVES, "kernels.cu", f"#{found[1]}", f"only {' '.join(sorted(_DIRECTIVES))} pragma")
        if found[1] == "include":
            header = re.fullmatch(r"<([\w/.]+)>\s*", found[2])
            want(
                header is not None and header[1] in INCLUDES,
                "kernels.cu",
                f"#include {found[2]}",
                "one of " + " ".join(f"<{h}>" for h in sorted(INCLUDES)),
            )


def signatures(plain: str) -> dict[str, tuple[Parameter, ...]]:
    """Entries declared `extern "C" __global__ void NAME(...)` in comment-free source, with their parameters."""
    found = {}
    linkage = r'(?:extern\s*"C"\s*)?' if re.search(r'extern\s*"C"\s*\{', plain) else r'extern\s*"C"\s*'
    pattern = (
        linkage + r"__global__\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()]*)\)"
    )
    for match in re.finditer(pattern, plain):
        name, inside = match[1], match[2].strip()
        parts = [] if inside in ("", "void") else inside.split(",")
        found[name] = tuple(_parameter(part.strip(), name) for part in parts)
    want(bool(found), "kernels.cu", "no kernel", 'at least one extern "C" __global__ void NAME(...)')
    return found


def _parameter(text: str, kernel: str) -> Parameter:
    text = " ".join(text.split())
    if "*" in text:
        want(text.count("*") == 1, f"kernel {kernel}", text, "pointers to elements, one * each")
        return Parameter(kind="pointer", bytes=8, text=text)
    words = [w for w in text.split() if w not in ("const", "__restrict__", "volatile")]
    for size in (len(words) - 1, len(words)):
        if " ".join(words[:size]) in _SCALARS:
            kind, width = _SCALARS[" ".join(words[:size])]
            return Parameter(kind=kind, bytes=width, text=text)
    raise PlanError(f"kernel {kernel}: got parameter {text!r}, wanted a pointer or one of {', '.join(sorted(_SCALARS))}")
