# corpus: task=min_reduce family=reduce_middle format=load_inline backend=cuda techniques=multiple_outputs,integer_output,std_tuple
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// One thread a column: neighbours read neighbours. Of equal values the first place wins.
__global__ void min_kernel(const float* __restrict__ x, float* __restrict__ values, int64_t* __restrict__ places, int depth, int cols) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  const float* from = x + (int64_t)blockIdx.y * depth * cols + col;
  float least = from[0];
  int place = 0;
  for (int k = 1; k < depth; ++k) {
    float v = from[(int64_t)k * cols];
    if (v < least) {
      least = v;
      place = k;
    }
  }
  values[(int64_t)blockIdx.y * cols + col] = least;
  places[(int64_t)blockIdx.y * cols + col] = place;
}

std::vector<torch::Tensor> min_middle(torch::Tensor x) {
  auto values = torch::empty({x.size(0), x.size(2)}, x.options());
  auto places = torch::empty({x.size(0), x.size(2)}, x.options().dtype(torch::kInt64));
  dim3 grid((x.size(2) + 127) / 128, x.size(0));
  min_kernel<<<grid, 128, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), values.data_ptr<float>(), places.data_ptr<int64_t>(), x.size(1), x.size(2));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {values, places};
}
"""
module = load_inline("min_middle", "std::vector<torch::Tensor> min_middle(torch::Tensor x);", CUDA, functions=["min_middle"])


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = module.min_middle(x)
        return values, places
