"""Imported by the zygote of compiled references: loads torch.compile's machinery once, so that every child finds it there."""

import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch._dynamo  # noqa: E402
import torch._inductor.codecache  # noqa: E402, F401
import torch._inductor.compile_fx  # noqa: E402, F401
import torch._inductor.config  # noqa: E402

torch._inductor.config.compile_threads = 1
# Headers are precompiled into the cache folder that all compiled references share.
torch._inductor.config.cpp_cache_precompile_headers = True
