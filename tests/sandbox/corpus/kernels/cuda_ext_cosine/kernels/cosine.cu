#include "reduce.cuh"

// Each norm is held above 1e-8 by itself, as torch does.
__global__ void cosine_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ y, int rows, int cols) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float ab = 0.0f, aa = 0.0f, bb = 0.0f;
  for (int i = lane; i < cols; i += 32) {
    float p = a[(size_t)row * cols + i], q = b[(size_t)row * cols + i];
    ab += p * q;
    aa += p * p;
    bb += q * q;
  }
  ab = warp_sum(ab);
  aa = warp_sum(aa);
  bb = warp_sum(bb);
  if (lane == 0) y[row] = ab / (fmaxf(sqrtf(aa), 1e-8f) * fmaxf(sqrtf(bb), 1e-8f));
}

extern "C" void cosine(const float* a, const float* b, float* y, int rows, int cols) { cosine_kernel<<<(rows + 3) / 4, 128>>>(a, b, y, rows, cols); }
