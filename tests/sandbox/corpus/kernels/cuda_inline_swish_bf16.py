# corpus: task=swish_bf16 family=activation format=load_inline backend=cuda techniques=bf16,dispatch_and2,opmath
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/Dispatch.h>

template <typename scalar_t>
__global__ void swish_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, size_t n) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const float v = static_cast<float>(x[i]);
    y[i] = static_cast<scalar_t>(v / (1.0f + __expf(-v)));
  }
}

torch::Tensor swish(const torch::Tensor& x) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "swish", [&] {
    swish_kernel<scalar_t><<<1056, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
ext = load_inline(name="swish_ext", cpp_sources="torch::Tensor swish(const torch::Tensor& x);", cuda_sources=CUDA, functions=["swish"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.swish = ext.swish

    def forward(self, x):
        return self.swish(x)
