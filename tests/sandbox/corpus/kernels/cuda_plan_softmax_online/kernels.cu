// corpus: task=softmax family=softmax format=plan backend=cuda techniques=online,warp_shuffle
// One warp a row; each lane keeps a running maximum and a sum scaled to it.
extern "C" __global__ void softmax_online(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  int lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += (long long)row * cols;
  y += (long long)row * cols;
  float top = -INFINITY, sum = 0.0f;
  for (int i = lane; i < cols; i += 32) {
    float v = x[i];
    if (v > top) {
      sum *= expf(top - v);
      top = v;
    }
    sum += expf(v - top);
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    float other_top = __shfl_xor_sync(0xffffffffu, top, o);
    float other_sum = __shfl_xor_sync(0xffffffffu, sum, o);
    float both = fmaxf(top, other_top);
    sum = sum * expf(top - both) + other_sum * expf(other_top - both);
    top = both;
  }
  float scale = 1.0f / sum;
  for (int i = lane; i < cols; i += 32) y[i] = expf(x[i] - top) * scale;
}
