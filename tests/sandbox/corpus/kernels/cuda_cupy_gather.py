# corpus: task=gather family=gather format=cupy backend=cuda techniques=int64_input,grid_stride
import cupy
import torch
from torch import nn

GATHER = cupy.RawKernel(
    r"""
extern "C" __global__ void gather(const float* x, const long long* index, float* y, long long total, long long taken, long long cols) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (long long)gridDim.x * blockDim.x)
    y[i] = x[i / taken * cols + index[i]];
}
""",
    "gather",
)


class ModelNew(nn.Module):
    def forward(self, x, index):
        y = torch.empty(index.shape, dtype=x.dtype, device=x.device)
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            GATHER((1024,), (256,), (x.data_ptr(), index.data_ptr(), y.data_ptr(), y.numel(), index.shape[1], x.shape[1]))
        return y
