# corpus: task=layer_norm family=layer_norm format=triton backend=cuda techniques=row_program,weights
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * cols + offsets, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(mask, x - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)
    w = tl.load(w_ptr + offsets, mask=mask)
    b = tl.load(b_ptr + offsets, mask=mask)
    tl.store(y_ptr + row * cols + offsets, centred * inverse * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(1024)

    def forward(self, x):
        y = torch.empty_like(x)
        cols = x.shape[-1]
        layer_norm_kernel[(x.shape[0],)](x, self.norm.weight, self.norm.bias, y, cols, self.norm.eps, BLOCK=triton.next_power_of_2(cols))
        return y
