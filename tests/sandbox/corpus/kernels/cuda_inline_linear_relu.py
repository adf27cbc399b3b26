# corpus: task=linear_relu family=linear format=load_inline backend=cuda techniques=shared_memory,fused_bias,weights_from_module
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

linear_relu_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>

#define TILE 32

__global__ void linear_relu_kernel(const float* x, const float* w, const float* b, float* y, int M, int N, int K) {
    __shared__ float xs[TILE][TILE];
    __shared__ float ws[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    float acc = 0.0f;
    for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
        int k = t * TILE + threadIdx.x;
        int wrow = blockIdx.x * TILE + threadIdx.y;
        xs[threadIdx.y][threadIdx.x] = (row < M && k < K) ? x[row * K + k] : 0.0f;
        ws[threadIdx.y][threadIdx.x] = (wrow < N && k < K) ? w[wrow * K + k] : 0.0f;
        __syncthreads();
        for (int d = 0; d < TILE; ++d) acc += xs[threadIdx.y][d] * ws[threadIdx.x][d];
        __syncthreads();
    }
    if (row < M && col < N) y[row * N + col] = fmaxf(acc + b[col], 0.0f);
}

torch::Tensor linear_relu(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    int M = x.size(0), K = x.size(1), N = w.size(0);
    auto y = torch::zeros({M, N}, x.options());
    dim3 block(TILE, TILE);
    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    linear_relu_kernel<<<grid, block>>>(x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), M, N, K);
    return y;
}
"""

linear_relu_module = load_inline(
    name="linear_relu",
    cpp_sources="torch::Tensor linear_relu(torch::Tensor x, torch::Tensor w, torch::Tensor b);",
    cuda_sources=linear_relu_source,
    functions=["linear_relu"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512)
        self.op = linear_relu_module

    def forward(self, x):
        return self.op.linear_relu(x, self.linear.weight, self.linear.bias)
