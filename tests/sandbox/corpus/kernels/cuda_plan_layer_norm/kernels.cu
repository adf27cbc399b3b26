// corpus: task=layer_norm family=layer_norm format=plan backend=cuda techniques=shared_memory,warp_shuffle,dynamic_shared
__device__ float block_sum(float v) {
  __shared__ float part[32];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (lane == 0) part[warp] = v;
  __syncthreads();
  v = lane < (blockDim.x >> 5) ? part[lane] : 0.0f;
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  __syncthreads();
  return v;
}

// The row stays in shared memory, so that the variance is taken around the mean with one read of x.
extern "C" __global__ void __launch_bounds__(256) layer_norm(const float* __restrict__ x, const float* __restrict__ weight,
                                                             const float* __restrict__ bias, float* __restrict__ y, int cols, float eps) {
  extern __shared__ float row[];
  x += (long long)blockIdx.x * cols;
  y += (long long)blockIdx.x * cols;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += row[i] = x[i];
  float mean = block_sum(sum) / cols;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
  float inverse = rsqrtf(block_sum(squares) / cols + eps);
  for (int i = threadIdx.x; i < cols; i += blockDim.x) y[i] = (row[i] - mean) * inverse * weight[i] + bias[i];
}
