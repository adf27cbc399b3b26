# corpus: task=affine_chain family=elementwise format=load_inline backend=cuda techniques=dispatch,current_stream,c10_check
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

template <typename scalar_t>
__global__ void affine_chain_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    scalar_t v = x[i] * scalar_t(1.5) + scalar_t(0.25);
    v = v > scalar_t(0) ? v : scalar_t(0);
    y[i] = scalar_t(1) / (scalar_t(1) + exp(scalar_t(1) - v));
  }
}

torch::Tensor affine_chain_cuda(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  auto y = torch::empty_like(x);
  const int64_t n = x.numel();
  const int threads = 256;
  const int blocks = (n + threads - 1) / threads;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "affine_chain_cuda", ([&] {
    affine_chain_kernel<scalar_t><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
  }));
  C10_CUDA_CHECK(cudaGetLastError());
  return y;
}
"""

cpp_source = "torch::Tensor affine_chain_cuda(torch::Tensor x);"

affine_chain = load_inline(
    name="affine_chain",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["affine_chain_cuda"],
    verbose=True,
    extra_cflags=["-O3"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine_chain = affine_chain

    def forward(self, x):
        return self.affine_chain.affine_chain_cuda(x)
