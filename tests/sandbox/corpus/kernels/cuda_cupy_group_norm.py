# corpus: task=group_norm family=group_norm format=cupy backend=cuda techniques=welford,warp_shuffle
import cupy
import torch
from torch import nn

SOURCE = r"""
struct Moments { float mean, m2, count; };

// Chan's rule for two sets of values.
__device__ Moments merge(Moments a, Moments b) {
  float count = a.count + b.count;
  if (count == 0.0f) return a;
  float delta = b.mean - a.mean;
  return {a.mean + delta * b.count / count, a.m2 + b.m2 + delta * delta * a.count * b.count / count, count};
}

extern "C" __global__ void group_norm(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ y,
                                      int groups, int each, int plane, float eps) {
  __shared__ Moments part[32];
  int size = each * plane;
  long long base = (long long)blockIdx.x * size;
  Moments own = {0.0f, 0.0f, 0.0f};
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    float v = x[base + i], delta = v - own.mean;
    own.count += 1.0f;
    own.mean += delta / own.count;
    own.m2 += delta * (v - own.mean);
  }
  for (int o = 16; o > 0; o >>= 1) {
    Moments other = {__shfl_xor_sync(0xffffffffu, own.mean, o), __shfl_xor_sync(0xffffffffu, own.m2, o), __shfl_xor_sync(0xffffffffu, own.count, o)};
    own = merge(own, other);
  }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = own;
  __syncthreads();
  Moments all = part[0];
  for (int w = 1; w < blockDim.x / 32; ++w) all = merge(all, part[w]);
  float scale = rsqrtf(all.m2 / size + eps);
  int first = blockIdx.x % groups * each;
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    int c = first + i / plane;
    y[base + i] = (x[base + i] - all.mean) * scale * weight[c] + bias[c];
  }
}
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(8, 64)
        self.kernel = cupy.RawKernel(SOURCE, "group_norm", options=("-std=c++17",))

    def forward(self, x):
        y = torch.empty_like(x)
        n, c, h, w = x.shape
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            self.kernel(
                (n * 8,),
                (512,),
                (
                    x.data_ptr(),
                    self.norm.weight.data_ptr(),
                    self.norm.bias.data_ptr(),
                    y.data_ptr(),
                    cupy.int32(8),
                    cupy.int32(c // 8),
                    cupy.int32(h * w),
                    cupy.float32(self.norm.eps),
                ),
            )
        return y
