# verdict: correct task=relu policy=mixed backend=cuda
import cupy
import torch
import torch.nn as nn

KERNEL = cupy.RawModule(
    code=r"""
extern "C" __global__ void relu(const float* x, float* out, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] > 0.0f ? x[i] : (x[i] == x[i] ? 0.0f : x[i]);
}
"""
).get_function("relu")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()

    def forward(self, x):
        # Half of the rows on a side stream that starts after the inputs and is waited for
        out, n = torch.empty_like(x), x.numel() // 2
        now = torch.cuda.current_stream()
        self.side.wait_stream(now)
        with cupy.cuda.ExternalStream(self.side.cuda_stream):
            KERNEL(((n + 255) // 256,), (256,), (x.data_ptr() + 4 * n, out.data_ptr() + 4 * n, cupy.int64(x.numel() - n)))
        with cupy.cuda.ExternalStream(now.cuda_stream):
            KERNEL(((n + 255) // 256,), (256,), (x.data_ptr(), out.data_ptr(), cupy.int64(n)))
        now.wait_stream(self.side)
        return out
