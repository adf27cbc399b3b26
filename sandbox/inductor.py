"""Imported by the zygote of compiled references: loads and warms torch.compile once, so that every child finds it ready."""

from __future__ import annotations

import os

from sandbox.build import cache_folder

os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder("inductor") / "zygote")
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch
import torch._dynamo
import torch._inductor.codecache as codecache
import torch._inductor.compile_fx
import torch._inductor.config as config
from torch._inductor import cpu_vec_isa

_HEADERS = cache_folder("inductor") / "headers"
"""Inductor's headers, precompiled by the first kernel of all (ten seconds) and read by every child: a kernel then takes two seconds, not five."""
config.compile_threads = 1
# Asking the compiler for each instruction set takes half a minute: /proc/cpuinfo tells.
config.cpp.vec_isa_ok = True
cpu_vec_isa.pick_vec_isa()
# torch would put them below /tmp, where each child has its own
codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(_HEADERS), str(_HEADERS / "locks")


def _warm() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        torch.compile(lambda x: torch.softmax(torch.relu(x) + 1.0, dim=-1))(torch.rand(8, 64))
    torch._dynamo.reset()


try:
    _warm()
except Exception:  # no openssl to hash the headers with, say
    torch._dynamo.reset()
    config.cpp_cache_precompile_headers = False
    _warm()
