# corpus: task=rms_norm family=rms_norm format=cupy backend=cuda techniques=warp_shuffle,templates,float4
import cupy
import torch
from torch import nn

SOURCE = r"""
template <int THREADS>
__device__ float block_sum(float v) {
  __shared__ float part[THREADS / 32];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0.0f;
  for (int w = 0; w < THREADS / 32; ++w) v += part[w];
  return v;
}

template <int THREADS>
__global__ void rms_norm(const float4* __restrict__ x, const float4* __restrict__ weight, float4* __restrict__ y, long long cols4, float eps) {
  const float4* row = x + blockIdx.x * cols4;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < cols4; i += THREADS) {
    float4 v = row[i];
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  float scale = rsqrtf(block_sum<THREADS>(sum) / (4 * cols4) + eps);
  for (int i = threadIdx.x; i < cols4; i += THREADS) {
    float4 v = row[i], w = weight[i];
    y[blockIdx.x * cols4 + i] = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
  }
}
"""
MODULE = cupy.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=("rms_norm<256>",))
RMS_NORM = MODULE.get_function("rms_norm<256>")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2048))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, cols = x.shape
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            RMS_NORM((rows,), (256,), (x.data_ptr(), self.weight.data_ptr(), y.data_ptr(), cols // 4, cupy.float32(1e-6)))
        return y
