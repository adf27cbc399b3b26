// corpus: task=matmul_bf16 family=matmul format=plan backend=cuda techniques=tensor_cores,wmma,bf16,shared_memory
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

// Blocks of 64 by 64 outputs, 4 warps of 32 by 32 each, fp32 accumulators; sizes are multiples of 64.
extern "C" __global__ void __launch_bounds__(128) matmul(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                                                         __nv_bfloat16* __restrict__ c, int m, int n, int k) {
  __shared__ __align__(32) __nv_bfloat16 as[64][32 + 16], bs[32][64 + 16];
  __shared__ __align__(32) float out[64][64 + 8];
  int warp = threadIdx.x / 32, wr = warp / 2 * 32, wc = warp % 2 * 32;
  int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
  for (int k0 = 0; k0 < k; k0 += 32) {
    for (int i = threadIdx.x; i < 64 * 4; i += 128) {
      int r = i / 4, d = i % 4 * 8;
      *(uint4*)&as[r][d] = *(const uint4*)&a[(long long)(row0 + r) * k + k0 + d];
    }
    for (int i = threadIdx.x; i < 32 * 8; i += 128) {
      int d = i / 8, q = i % 8 * 8;
      *(uint4*)&bs[d][q] = *(const uint4*)&b[(long long)(k0 + d) * n + col0 + q];
    }
    __syncthreads();
    for (int d = 0; d < 32; d += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> fa[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> fb[2];
      for (int i = 0; i < 2; ++i) {
        wmma::load_matrix_sync(fa[i], &as[wr + 16 * i][d], 32 + 16);
        wmma::load_matrix_sync(fb[i], &bs[d][wc + 16 * i], 64 + 16);
      }
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], fa[i], fb[j], sum[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) wmma::store_matrix_sync(&out[wr + 16 * i][wc + 16 * j], sum[i][j], 64 + 8, wmma::mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * 64; i += 128) c[(long long)(row0 + i / 64) * n + col0 + i % 64] = __float2bfloat16(out[i / 64][i % 64]);
}
