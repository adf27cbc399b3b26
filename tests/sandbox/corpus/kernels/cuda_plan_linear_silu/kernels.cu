// corpus: task=linear_silu family=linear format=plan backend=cuda techniques=library_gemm,fused_epilogue,float4
__device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }

extern "C" __global__ void bias_silu(float4* __restrict__ y, const float4* __restrict__ bias, int n4, int cols4) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n4; i += gridDim.x * blockDim.x) {
    float4 v = y[i], b = __ldg(bias + i % cols4);
    y[i] = make_float4(silu(v.x + b.x), silu(v.y + b.y), silu(v.z + b.z), silu(v.w + b.w));
  }
}
