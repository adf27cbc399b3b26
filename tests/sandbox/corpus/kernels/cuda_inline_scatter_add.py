# corpus: task=scatter_add family=scatter format=load_inline backend=cuda techniques=atomics,int64_input
from torch import nn
from torch.utils.cpp_extension import load_inline

scatter = load_inline(
    name="scatter_rows",
    cpp_sources="torch::Tensor scatter_rows(torch::Tensor values, torch::Tensor index, int64_t rows);",
    cuda_sources=r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void scatter_rows_kernel(const float* __restrict__ values, const int64_t* __restrict__ index, float* __restrict__ out, int64_t n, int64_t cols) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(out + index[i / cols] * cols + i % cols, values[i]);
}

torch::Tensor scatter_rows(torch::Tensor values, torch::Tensor index, int64_t rows) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "index must be int64");
  auto out = torch::zeros({rows, values.size(1)}, values.options());
  const int64_t n = values.numel();
  auto stream = at::cuda::getCurrentCUDAStream();
  scatter_rows_kernel<<<(n + 255) / 256, 256, 0, stream>>>(values.data_ptr<float>(), index.data_ptr<int64_t>(), out.data_ptr<float>(), n, values.size(1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
""",
    functions=["scatter_rows"],
)


class ModelNew(nn.Module):
    def forward(self, values, index):
        return scatter.scatter_rows(values, index, 1024)
