# corpus: task=hinge family=loss format=load_inline backend=cuda techniques=atomics,scalar_output,broadcast,dynamic_shared
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

hinge_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void hinge_loss_kernel(const float* predictions, const float* targets, float* out, int n, int cols) {
    extern __shared__ float sdata[];
    int tid = threadIdx.x;
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + tid; i < n; i += blockDim.x * gridDim.x) {
        sum += fmaxf(1.0f - predictions[i] * targets[i % cols], 0.0f);
    }
    sdata[tid] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) sdata[tid] += sdata[tid + s];
        __syncthreads();
    }
    if (tid == 0) atomicAdd(out, sdata[0] / n);
}

torch::Tensor hinge_loss_cuda(torch::Tensor predictions, torch::Tensor targets) {
    auto out = torch::zeros({}, predictions.options());
    int n = predictions.numel();
    const int block_size = 256;
    const int num_blocks = std::min((n + block_size - 1) / block_size, 1024);
    hinge_loss_kernel<<<num_blocks, block_size, block_size * sizeof(float)>>>(
        predictions.data_ptr<float>(), targets.data_ptr<float>(), out.data_ptr<float>(), n, (int)targets.numel());
    return out;
}
"""

hinge_cpp_source = "torch::Tensor hinge_loss_cuda(torch::Tensor predictions, torch::Tensor targets);"

hinge_loss = load_inline(
    name="hinge_loss",
    cpp_sources=hinge_cpp_source,
    cuda_sources=hinge_source,
    functions=["hinge_loss_cuda"],
    verbose=True,
    extra_cflags=[""],
    extra_ldflags=[""],
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.hinge_loss = hinge_loss

    def forward(self, predictions, targets):
        return self.hinge_loss.hinge_loss_cuda(predictions.contiguous(), targets.contiguous())
