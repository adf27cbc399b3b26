# corpus: task=conv2d family=conv2d format=load_inline backend=cuda techniques=direct,weights_from_module,last_error,import_in_init
from torch import nn

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void conv2d_kernel(const float* input, const float* weight, const float* bias, float* output, int batch, int in_channels, int out_channels,
                              int height, int width, int kernel, int stride, int padding, int out_height, int out_width) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  int total = batch * out_channels * out_height * out_width;
  if (index >= total) return;
  int ow = index % out_width;
  int oh = (index / out_width) % out_height;
  int oc = (index / (out_width * out_height)) % out_channels;
  int b = index / (out_width * out_height * out_channels);
  float sum = bias != nullptr ? bias[oc] : 0.0f;
  for (int ic = 0; ic < in_channels; ++ic) {
    for (int kh = 0; kh < kernel; ++kh) {
      int ih = oh * stride - padding + kh;
      if (ih < 0 || ih >= height) continue;
      for (int kw = 0; kw < kernel; ++kw) {
        int iw = ow * stride - padding + kw;
        if (iw < 0 || iw >= width) continue;
        sum += input[((b * in_channels + ic) * height + ih) * width + iw] * weight[((oc * in_channels + ic) * kernel + kh) * kernel + kw];
      }
    }
  }
  output[index] = sum;
}

torch::Tensor conv2d_cuda(torch::Tensor input, torch::Tensor weight, torch::Tensor bias, int stride, int padding) {
  TORCH_CHECK(input.dim() == 4, "wanted NCHW");
  TORCH_CHECK(input.dtype() == torch::kFloat32, "wanted float32");
  int batch = input.size(0), in_channels = input.size(1), height = input.size(2), width = input.size(3);
  int out_channels = weight.size(0), kernel = weight.size(2);
  int out_height = (height + 2 * padding - kernel) / stride + 1, out_width = (width + 2 * padding - kernel) / stride + 1;
  auto output = torch::empty({batch, out_channels, out_height, out_width}, input.options());
  int total = output.numel();
  conv2d_kernel<<<(total + 255) / 256, 256>>>(input.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), output.data_ptr<float>(), batch,
                                              in_channels, out_channels, height, width, kernel, stride, padding, out_height, out_width);
  cudaError_t error = cudaGetLastError();
  TORCH_CHECK(error == cudaSuccess, "conv2d_kernel: ", cudaGetErrorString(error));
  return output;
}
"""
CPP = "torch::Tensor conv2d_cuda(torch::Tensor input, torch::Tensor weight, torch::Tensor bias, int stride, int padding);"


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3, stride=1, padding=1)
        from torch.utils.cpp_extension import load_inline

        self.extension = load_inline(name="conv2d_direct", cpp_sources=CPP, cuda_sources=CUDA, functions=["conv2d_cuda"], verbose=False)

    def forward(self, x):
        return self.extension.conv2d_cuda(x.contiguous(), self.conv.weight, self.conv.bias, 1, 1)
