# corpus: task=attention family=attention format=cupy backend=cuda techniques=flash,online,shared_memory
import cupy
import torch
from torch import nn

# A thread holds one query and its accumulator; blocks of 32 keys and values pass through shared memory.
FLASH = cupy.RawKernel(
    r"""
#define D 64
#define KEYS 32
extern "C" __global__ void __launch_bounds__(64) flash(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                                                       float* __restrict__ o, int length, float scale) {
  __shared__ float ks[KEYS][D], vs[KEYS][D];
  long long base = (long long)blockIdx.y * length * D;
  int row = blockIdx.x * 64 + threadIdx.x;
  float own[D], sum[D], top = -1e30f, total = 0.0f;
#pragma unroll
  for (int d = 0; d < D; ++d) {
    own[d] = row < length ? q[base + (long long)row * D + d] * scale : 0.0f;
    sum[d] = 0.0f;
  }
  for (int first = 0; first < length; first += KEYS) {
    int count = min(KEYS, length - first);
    for (int i = threadIdx.x; i < count * D; i += 64) {
      ks[i / D][i % D] = k[base + (long long)first * D + i];
      vs[i / D][i % D] = v[base + (long long)first * D + i];
    }
    __syncthreads();
    for (int j = 0; j < count; ++j) {
      float s = 0.0f;
#pragma unroll
      for (int d = 0; d < D; ++d) s += own[d] * ks[j][d];
      if (s > top) {
        float fade = expf(top - s);
        total *= fade;
#pragma unroll
        for (int d = 0; d < D; ++d) sum[d] *= fade;
        top = s;
      }
      float p = expf(s - top);
      total += p;
#pragma unroll
      for (int d = 0; d < D; ++d) sum[d] += p * vs[j][d];
    }
    __syncthreads();
  }
  if (row < length)
#pragma unroll
    for (int d = 0; d < D; ++d) o[base + (long long)row * D + d] = sum[d] / total;
}
""",
    "flash",
)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        out = torch.empty_like(q)
        batch, heads, length, depth = q.shape
        arguments = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), cupy.int32(length), cupy.float32(1.0 / depth**0.5))
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            FLASH(((length + 63) // 64, batch * heads), (64,), arguments)
        return out
