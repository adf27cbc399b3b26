template <int TILE>
__global__ void bmm_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
  __shared__ float as[TILE][TILE + 1], bs[TILE][TILE + 1];
  a += (long long)blockIdx.z * m * k;
  b += (long long)blockIdx.z * k * n;
  c += (long long)blockIdx.z * m * n;
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int k0 = 0; k0 < k; k0 += TILE) {
    as[threadIdx.y][threadIdx.x] = row < m && k0 + threadIdx.x < k ? a[row * k + k0 + threadIdx.x] : 0.0f;
    bs[threadIdx.y][threadIdx.x] = k0 + threadIdx.y < k && col < n ? b[(k0 + threadIdx.y) * n + col] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int d = 0; d < TILE; ++d) sum += as[threadIdx.y][d] * bs[d][threadIdx.x];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = sum;
}

extern "C" void bmm(const float* a, const float* b, float* c, int batch, int m, int n, int k) {
  constexpr int tile = 16;
  dim3 grid((n + tile - 1) / tile, (m + tile - 1) / tile, batch);
  bmm_kernel<tile><<<grid, dim3(tile, tile)>>>(a, b, c, m, n, k);
}
