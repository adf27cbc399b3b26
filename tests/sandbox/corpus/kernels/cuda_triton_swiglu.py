# corpus: task=swiglu family=elementwise format=triton backend=cuda techniques=autotune,lambda_grid
import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune(configs=[triton.Config({"BLOCK": 1024}, num_warps=4), triton.Config({"BLOCK": 2048}, num_warps=8)], key=["n"])
@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    gate = tl.load(gate_ptr + offsets, mask=mask)
    up = tl.load(up_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, gate * tl.sigmoid(gate) * up, mask=mask)


class ModelNew(nn.Module):
    def forward(self, gate, up):
        y = torch.empty_like(gate)
        n = y.numel()
        swiglu_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](gate, up, y, n)
        return y
