// corpus: task=argmax family=argmax format=plan backend=cuda techniques=integer_output,warp_shuffle
// One warp a row; of equal values the first place wins.
extern "C" __global__ void argmax(const float* __restrict__ x, long long* __restrict__ y, int rows, int cols) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += (long long)row * cols;
  float top = -INFINITY;
  int place = cols;
  for (int i = lane; i < cols; i += 32)
    if (x[i] > top || place == cols) {
      top = x[i];
      place = i;
    }
  for (int o = 16; o > 0; o /= 2) {
    float v = __shfl_xor_sync(0xffffffffu, top, o);
    int p = __shfl_xor_sync(0xffffffffu, place, o);
    if (v > top || (v == top && p < place)) {
      top = v;
      place = p;
    }
  }
  if (lane == 0) y[row] = place;
}
