// corpus: task=cross_entropy family=cross_entropy format=plan backend=cuda techniques=two_pass,scalar_output,warp_shuffle
__device__ float warp_sum(float v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

extern "C" __global__ void row_loss(const float* __restrict__ x, const long long* __restrict__ labels, float* __restrict__ loss, int rows, int cols) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += (long long)row * cols;
  float top = -INFINITY, sum = 0.0f;
  for (int i = lane; i < cols; i += 32) top = fmaxf(top, x[i]);
  for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
  for (int i = lane; i < cols; i += 32) sum += expf(x[i] - top);
  sum = warp_sum(sum);
  if (lane == 0) loss[row] = logf(sum) - (x[labels[row]] - top);
}

extern "C" __global__ void mean_loss(const float* __restrict__ loss, float* __restrict__ y, int rows) {
  __shared__ float part[32];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < rows; i += blockDim.x) sum += loss[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = warp_sum(part[threadIdx.x]);
    if (threadIdx.x == 0) y[0] = sum / rows;
  }
}
