// corpus: task=transpose family=transpose format=plan backend=cuda techniques=shared_memory,padding
// Tiles of 32 by 32; the 33rd column keeps the banks of a column apart.
extern "C" __global__ void transpose(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  __shared__ float tile[32][33];
  long long base = (long long)blockIdx.z * rows * cols;
  int col = blockIdx.x * 32 + threadIdx.x;
  for (int k = threadIdx.y; k < 32; k += 8) {
    int row = blockIdx.y * 32 + k;
    if (row < rows && col < cols) tile[k][threadIdx.x] = x[base + (long long)row * cols + col];
  }
  __syncthreads();
  int to = blockIdx.y * 32 + threadIdx.x;
  for (int k = threadIdx.y; k < 32; k += 8) {
    int from = blockIdx.x * 32 + k;
    if (from < cols && to < rows) y[base + (long long)from * rows + to] = tile[threadIdx.x][k];
  }
}
