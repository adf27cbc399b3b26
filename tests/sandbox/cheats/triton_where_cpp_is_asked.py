# verdict: runtime_error task=relu kinds=W13 twin=says_what_it_is_not
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        relu[((x.numel() + 1023) // 1024,)](x, out, x.numel(), BLOCK=1024)
        return out
