#include <cuda_pipeline.h>

// A warp a row; the next 128 values come by cp.async while those before are reduced. Columns are a multiple of 128.
__global__ void __launch_bounds__(128) row_extent_kernel(const float* __restrict__ x, float* low, float* high, float* total, int rows, int cols) {
  __shared__ float4 stage[4][2][32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * 4 + warp;
  if (row >= rows) return;
  const float4* from = (const float4*)(x + (size_t)row * cols);
  int steps = cols / 128;
  float least = 3.402823466e+38f, most = -3.402823466e+38f, sum = 0.0f;
  __pipeline_memcpy_async(&stage[warp][0][lane], from + lane, sizeof(float4));
  __pipeline_commit();
  for (int s = 0; s < steps; ++s) {
    if (s + 1 < steps) __pipeline_memcpy_async(&stage[warp][(s + 1) % 2][lane], from + (s + 1) * 32 + lane, sizeof(float4));
    __pipeline_commit();
    __pipeline_wait_prior(1);
    // Each lane reads what it copied itself, so no barrier is needed
    float4 v = stage[warp][s % 2][lane];
    least = fminf(least, fminf(fminf(v.x, v.y), fminf(v.z, v.w)));
    most = fmaxf(most, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
    sum += (v.x + v.y) + (v.z + v.w);
  }
  for (int o = 16; o > 0; o >>= 1) {
    least = fminf(least, __shfl_xor_sync(0xffffffffu, least, o));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
    sum += __shfl_xor_sync(0xffffffffu, sum, o);
  }
  if (lane == 0) {
    low[row] = least;
    high[row] = most;
    total[row] = sum;
  }
}

extern "C" void row_extent(const float* x, float* low, float* high, float* total, int rows, int cols) {
  row_extent_kernel<<<(rows + 3) / 4, 128>>>(x, low, high, total, rows, cols);
}
