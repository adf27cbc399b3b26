// corpus: task=conv_bn_relu family=batch_norm format=plan backend=cuda techniques=library_conv,fused_epilogue
extern "C" __global__ void bn_relu(const float* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ var,
                                   const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ y, int plane,
                                   int channels, float eps) {
  int c = blockIdx.y % channels;
  float scale = weight[c] / sqrtf(var[c] + eps), shift = bias[c] - mean[c] * scale;
  long long base = (long long)blockIdx.y * plane;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < plane) y[base + i] = fmaxf(x[base + i] * scale + shift, 0.0f);
}
