// corpus: task=mean_middle family=reduce_middle format=plan backend=cuda techniques=shared_memory,coalesced
// 32 columns a block, 8 threads share the rows of a column.
extern "C" __global__ void mean_middle(const float* __restrict__ x, float* __restrict__ y, int depth, int cols) {
  __shared__ float part[8][32];
  int col = blockIdx.x * 32 + threadIdx.x;
  float sum = 0.0f;
  if (col < cols)
    for (int k = threadIdx.y; k < depth; k += 8) sum += x[((long long)blockIdx.y * depth + k) * cols + col];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && col < cols) {
    for (int k = 1; k < 8; ++k) sum += part[k][threadIdx.x];
    y[(long long)blockIdx.y * cols + col] = sum / depth;
  }
}
