# corpus: task=bias_relu_channels_last family=bias format=cupy backend=cuda techniques=channels_last,float4,views
import cupy
import torch
from torch import nn

BIAS_RELU = cupy.RawKernel(
    r"""
extern "C" __global__ void bias_relu(const float4* x, const float4* bias, float4* y, long long n4, long long channels4) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n4) return;
  float4 v = x[i], b = bias[i % channels4];
  y[i] = make_float4(fmaxf(v.x + b.x, 0.0f), fmaxf(v.y + b.y, 0.0f), fmaxf(v.z + b.z, 0.0f), fmaxf(v.w + b.w, 0.0f));
}
""",
    "bias_relu",
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(64))

    def forward(self, x):
        pixels = x.permute(0, 2, 3, 1).contiguous()
        y = torch.empty_like(pixels)
        n4 = pixels.numel() // 4
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            BIAS_RELU(((n4 + 255) // 256,), (256,), (pixels.data_ptr(), self.bias.data_ptr(), y.data_ptr(), n4, pixels.shape[-1] // 4))
        return y.permute(0, 3, 1, 2)
