# corpus: task=gelu_bias family=activation format=load_inline backend=cuda techniques=packed_accessor,weights_from_module
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void gelu_bias_kernel(const torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> x,
                                 const torch::PackedTensorAccessor32<float, 1, torch::RestrictPtrTraits> bias,
                                 torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> y) {
  const int row = blockIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < x.size(1)) {
    const float v = x[row][col] + bias[col];
    y[row][col] = v * normcdff(v);
  }
}

torch::Tensor gelu_bias(torch::Tensor x, torch::Tensor bias) {
  auto y = torch::empty_like(x);
  const dim3 blocks((x.size(1) + 255) / 256, x.size(0));
  gelu_bias_kernel<<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.packed_accessor32<float, 2, torch::RestrictPtrTraits>(),
                                                                      bias.packed_accessor32<float, 1, torch::RestrictPtrTraits>(),
                                                                      y.packed_accessor32<float, 2, torch::RestrictPtrTraits>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
extension = load_inline(
    name="gelu_bias",
    cpp_sources="torch::Tensor gelu_bias(torch::Tensor x, torch::Tensor bias);",
    cuda_sources=CUDA,
    functions=["gelu_bias"],
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1024))

    def forward(self, x):
        return extension.gelu_bias(x, self.bias)
