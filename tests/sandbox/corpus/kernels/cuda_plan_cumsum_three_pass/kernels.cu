// corpus: task=cumsum family=scan format=plan backend=cuda techniques=scan,warp_shuffle,float4,buffers
// Three passes: sums of chunks of 1024, their exclusive scan in each row, scan of each chunk from its start.
__device__ float inclusive(float v, float* part) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int o = 1; o < 32; o <<= 1) {
    float w = __shfl_up_sync(0xffffffffu, v, o);
    if (lane >= o) v += w;
  }
  if (lane == 31) part[warp] = v;
  __syncthreads();
  float before = 0.0f;
  for (int k = 0; k < warp; ++k) before += part[k];
  return v + before;
}

extern "C" __global__ void chunk_sums(const float4* __restrict__ x, float* __restrict__ sums) {
  __shared__ float part[8];
  float4 v = x[(long long)blockIdx.x * 256 + threadIdx.x];
  float s = inclusive(v.x + v.y + v.z + v.w, part);
  if (threadIdx.x == 255) sums[blockIdx.x] = s;
}

extern "C" __global__ void scan_sums(float* __restrict__ sums, int chunks, int rows) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float run = 0.0f;
  for (int k = 0; k < chunks; ++k) {
    float v = sums[row * chunks + k];
    sums[row * chunks + k] = run;
    run += v;
  }
}

extern "C" __global__ void chunk_scan(const float4* __restrict__ x, const float* __restrict__ starts, float4* __restrict__ y) {
  __shared__ float part[8];
  long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  float4 v = x[i];
  v.y += v.x;
  v.z += v.y;
  v.w += v.z;
  float before = inclusive(v.w, part) - v.w + starts[blockIdx.x];
  y[i] = make_float4(v.x + before, v.y + before, v.z + before, v.w + before);
}
