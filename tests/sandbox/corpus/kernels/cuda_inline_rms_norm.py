# corpus: task=rms_norm family=rms_norm format=load_inline backend=cuda techniques=pybind,warp_shuffle,import_in_init
import torch
from torch import nn

SOURCE = r"""
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

#define CHECK_CUDA(t) TORCH_CHECK((t).is_cuda(), #t " must be on a GPU")
#define CHECK_CONTIGUOUS(t) TORCH_CHECK((t).is_contiguous(), #t " must be contiguous")
#define CHECK_INPUT(t) CHECK_CUDA(t); CHECK_CONTIGUOUS(t)

__global__ void rms_norm_kernel(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y, int cols, float eps) {
  __shared__ float part[32];
  const float* row = x + (size_t)blockIdx.x * cols;
  float sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += row[i] * row[i];
  for (int o = warpSize / 2; o > 0; o >>= 1) sum += __shfl_down_sync(0xffffffff, sum, o);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
    for (int o = warpSize / 2; o > 0; o >>= 1) sum += __shfl_down_sync(0xffffffff, sum, o);
    if (threadIdx.x == 0) part[0] = rsqrtf(sum / cols + eps);
  }
  __syncthreads();
  const float scale = part[0];
  for (int i = threadIdx.x; i < cols; i += blockDim.x) y[(size_t)blockIdx.x * cols + i] = row[i] * scale * weight[i];
}

at::Tensor rms_norm(at::Tensor x, at::Tensor weight, double eps) {
  CHECK_INPUT(x);
  CHECK_INPUT(weight);
  at::Tensor y = at::empty_like(x);
  cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
  rms_norm_kernel<<<x.size(0), 512, 0, stream>>>(x.data_ptr<float>(), weight.data_ptr<float>(), y.data_ptr<float>(), x.size(1), eps);
  AT_CUDA_CHECK(cudaGetLastError());
  return y;
}
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        import torch.utils.cpp_extension as cpp_extension

        self.weight = nn.Parameter(torch.ones(2048))
        self.kernels = cpp_extension.load_inline(
            name="rms_norm_inline",
            cpp_sources="at::Tensor rms_norm(at::Tensor x, at::Tensor weight, double eps);",
            cuda_sources=SOURCE,
            functions={"rms_norm": "root mean square norm of rows"},
            extra_cuda_cflags=["-O3", "-lineinfo"],
        )

    def forward(self, x):
        return self.kernels.rms_norm(x, self.weight, 1e-6)
