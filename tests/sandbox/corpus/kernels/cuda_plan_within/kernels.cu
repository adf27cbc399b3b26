// corpus: task=within family=comparison format=plan backend=cuda techniques=bool_output,broadcast,grid_stride
extern "C" __global__ void within(const float* __restrict__ x, const float* __restrict__ low, const float* __restrict__ high, bool* __restrict__ y,
                                  size_t n, unsigned cols) {
  size_t step = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    unsigned col = i % cols;
    y[i] = x[i] >= low[col] && x[i] <= high[col];
  }
}
