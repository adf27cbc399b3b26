"""Imported by the zygote of compiled references: loads and warms torch.compile once, so that every child finds it ready."""

from __future__ import annotations

import os

from sandbox.build import cache_folder

os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder("inductor") / "zygote")
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch._inductor.config as config
from torch._inductor import cpu_vec_isa

config.compile_threads = 1
# Precompiling inductor's headers takes a minute, asking the compiler for each instruction set half a minute: /proc/cpuinfo tells.
config.cpp_cache_precompile_headers = False
config.cpp.vec_isa_ok = True
cpu_vec_isa.pick_vec_isa()


def _warm() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        torch.compile(lambda x: torch.softmax(torch.relu(x) + 1.0, dim=-1))(torch.rand(8, 64))
    torch._dynamo.reset()


_warm()
