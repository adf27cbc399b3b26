# corpus: task=depthwise family=depthwise_conv format=cupy backend=cuda techniques=shared_memory,halo,constant_unroll
import cupy
import torch
from torch import nn

DEPTHWISE = cupy.RawKernel(
    r"""
extern "C" __global__ void depthwise(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b, float* __restrict__ y,
                                     int channels, int height, int width) {
  __shared__ float tile[18][34];
  long long base = (long long)blockIdx.z * height * width;
  int channel = blockIdx.z % channels, r0 = blockIdx.y * 16 - 1, q0 = blockIdx.x * 32 - 1;
  for (int i = threadIdx.y * 32 + threadIdx.x; i < 18 * 34; i += 16 * 32) {
    int r = r0 + i / 34, q = q0 + i % 34;
    tile[i / 34][i % 34] = r >= 0 && r < height && q >= 0 && q < width ? x[base + r * width + q] : 0.0f;
  }
  __syncthreads();
  int r = blockIdx.y * 16 + threadIdx.y, q = blockIdx.x * 32 + threadIdx.x;
  if (r >= height || q >= width) return;
  float sum = b[channel];
#pragma unroll
  for (int i = 0; i < 3; ++i)
#pragma unroll
    for (int j = 0; j < 3; ++j) sum += w[channel * 9 + i * 3 + j] * tile[threadIdx.y + i][threadIdx.x + j];
  y[base + r * width + q] = sum;
}
""",
    "depthwise",
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, padding=1, groups=64)

    def forward(self, x):
        n, c, h, w = x.shape
        y = torch.empty_like(x)
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        arguments = (
            x.data_ptr(),
            self.conv.weight.data_ptr(),
            self.conv.bias.data_ptr(),
            y.data_ptr(),
            cupy.int32(c),
            cupy.int32(h),
            cupy.int32(w),
        )
        with stream:
            DEPTHWISE(((w + 31) // 32, (h + 15) // 16, n * c), (32, 16), arguments)
        return y
