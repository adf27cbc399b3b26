# corpus: task=matmul_fp16 family=matmul format=triton backend=cuda techniques=tensor_cores,fp16,fused_epilogue
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def matmul_relu(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + rows[:, None] * K + k + depth[None, :], mask=(rows[:, None] < M) & (k + depth[None, :] < K), other=0.0)
        b = tl.load(b_ptr + (k + depth[:, None]) * N + cols[None, :], mask=(k + depth[:, None] < K) & (cols[None, :] < N), other=0.0)
        total = tl.dot(a, b, total)
    total = tl.maximum(total, 0.0)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total.to(tl.float16), mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty((m, n), dtype=a.dtype, device=a.device)
        matmul_relu[(triton.cdiv(m, 64), triton.cdiv(n, 64))](a, b, c, m, n, k, BM=64, BN=64, BK=32, num_stages=3)
        return c
