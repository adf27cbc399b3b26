# corpus: task=rope family=rotary format=cupy backend=cuda techniques=pairs,broadcast
import cupy
import torch
from torch import nn

ROPE = cupy.RawModule(
    code=r"""
extern "C" __global__ void rope(const float* __restrict__ x, const float* __restrict__ cos, const float* __restrict__ sin, float* __restrict__ y,
                                long long pairs, long long length, long long half) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  long long row = i / half, d = i % half, at = row % length;
  float a = x[row * 2 * half + d], b = x[row * 2 * half + half + d];
  const float* c = cos + at * 2 * half;
  const float* s = sin + at * 2 * half;
  y[row * 2 * half + d] = a * c[d] - b * s[d];
  y[row * 2 * half + half + d] = b * c[half + d] + a * s[half + d];
}
"""
).get_function("rope")


class ModelNew(nn.Module):
    def forward(self, x, cos, sin):
        y = torch.empty_like(x)
        length, half = x.shape[-2], x.shape[-1] // 2
        pairs = x.numel() // 2
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            ROPE(((pairs + 255) // 256,), (256,), (x.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr(), pairs, length, half))
        return y
