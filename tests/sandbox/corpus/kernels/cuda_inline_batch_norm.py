# corpus: task=folded_batch_norm family=batch_norm format=load_inline backend=cuda techniques=running_statistics,float4,cuda_guard
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

__global__ void bn_relu(const float4* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ var, const float* __restrict__ weight,
                        const float* __restrict__ bias, float4* __restrict__ y, int channels, int plane4, float eps) {
  const int channel = blockIdx.x % channels;
  const float scale = weight[channel] * rsqrtf(var[channel] + eps), shift = bias[channel] - mean[channel] * scale;
  x += (size_t)blockIdx.x * plane4;
  y += (size_t)blockIdx.x * plane4;
  for (int i = threadIdx.x; i < plane4; i += blockDim.x) {
    float4 v = x[i];
    v.x = fmaxf(v.x * scale + shift, 0.f);
    v.y = fmaxf(v.y * scale + shift, 0.f);
    v.z = fmaxf(v.z * scale + shift, 0.f);
    v.w = fmaxf(v.w * scale + shift, 0.f);
    y[i] = v;
  }
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& var, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor input = x.contiguous(), y = at::empty_like(input);
  const int channels = x.size(1), plane4 = x.size(2) * x.size(3) / 4;
  bn_relu<<<x.size(0) * channels, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const float4*>(input.data_ptr<float>()), mean.data_ptr<float>(), var.data_ptr<float>(), weight.data_ptr<float>(),
      bias.data_ptr<float>(), reinterpret_cast<float4*>(y.data_ptr<float>()), channels, plane4, static_cast<float>(eps));
  return y;
}
"""
CPP = """
at::Tensor forward(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& var, const at::Tensor& weight, const at::Tensor& bias, double eps);
"""
extension = load_inline(name="bn_relu_ext", cpp_sources=[CPP], cuda_sources=[CUDA], functions=["forward"], with_cuda=True)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x):
        n = self.norm
        return extension.forward(x, n.running_mean, n.running_var, n.weight, n.bias, n.eps)
