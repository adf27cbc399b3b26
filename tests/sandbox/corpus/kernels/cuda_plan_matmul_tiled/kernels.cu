// corpus: task=matmul family=matmul format=plan backend=cuda techniques=shared_memory,padding,register_tile
// Blocks of 64 by 64 outputs, 256 threads of 4 by 4 each, depth 16 a step.
extern "C" __global__ void __launch_bounds__(256) matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
  __shared__ float as[16][64 + 1], bs[16][64];
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
  float sum[4][4] = {};
  for (int k0 = 0; k0 < k; k0 += 16) {
    for (int i = threadIdx.x; i < 64 * 16; i += 256) {
      int r = i / 16, d = i % 16;
      as[d][r] = row0 + r < m && k0 + d < k ? a[(long long)(row0 + r) * k + k0 + d] : 0.0f;
    }
    for (int i = threadIdx.x; i < 16 * 64; i += 256) {
      int d = i / 64, q = i % 64;
      bs[d][q] = k0 + d < k && col0 + q < n ? b[(long long)(k0 + d) * n + col0 + q] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < 16; ++d) {
      float p[4], q[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[i] = as[d][ty * 4 + i];
        q[i] = bs[d][tx + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += p[i] * q[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      int r = row0 + ty * 4 + i, q = col0 + tx + 16 * j;
      if (r < m && q < n) c[(long long)r * n + q] = sum[i][j];
    }
}
