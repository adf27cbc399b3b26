// corpus: task=gelu_bias family=activation format=plan backend=cuda techniques=float4,bias_fusion
__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f)); }

extern "C" __global__ void gelu_bias(const float4* __restrict__ x, const float4* __restrict__ bias, float4* __restrict__ y, long long n4, int cols4) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n4) return;
  float4 v = x[i], b = bias[i % cols4];
  y[i] = make_float4(gelu(v.x + b.x), gelu(v.y + b.y), gelu(v.z + b.z), gelu(v.w + b.w));
}
