__device__ __forceinline__ float leaky(float v, float slope) { return v > 0.0f ? v : v * slope; }

__global__ void leaky_relu_kernel(float4* x, long long n4, float slope) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n4; i += (long long)gridDim.x * blockDim.x) {
    float4 v = x[i];
    x[i] = make_float4(leaky(v.x, slope), leaky(v.y, slope), leaky(v.z, slope), leaky(v.w, slope));
  }
}

extern "C" void leaky_relu_(float* x, long long n, float slope) { leaky_relu_kernel<<<1056, 256>>>((float4*)x, n / 4, slope); }
