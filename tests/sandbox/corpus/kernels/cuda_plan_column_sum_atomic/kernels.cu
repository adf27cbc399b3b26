// corpus: task=column_sum family=reduce_first format=plan backend=cuda techniques=atomics,fill
extern "C" __global__ void column_sum(const float* __restrict__ x, float* __restrict__ y, int rows, int cols, int each) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  int first = blockIdx.y * each, last = min(first + each, rows);
  float sum = 0.0f;
  for (int row = first; row < last; ++row) sum += x[(long long)row * cols + col];
  atomicAdd(y + col, sum);
}
