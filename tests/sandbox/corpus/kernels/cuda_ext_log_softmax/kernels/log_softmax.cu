#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

__global__ void log_softmax_kernel(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
  int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (row >= rows) return;
  x += (size_t)row * cols;
  y += (size_t)row * cols;
  float top = -3.402823466e+38f, sum = 0.0f;
  for (int i = warp.thread_rank(); i < cols; i += warp.size()) top = fmaxf(top, x[i]);
  top = cg::reduce(warp, top, cg::greater<float>());
  for (int i = warp.thread_rank(); i < cols; i += warp.size()) sum += expf(x[i] - top);
  float shift = top + logf(cg::reduce(warp, sum, cg::plus<float>()));
  for (int i = warp.thread_rank(); i < cols; i += warp.size()) y[i] = x[i] - shift;
}

extern "C" void log_softmax(const float* x, float* y, int rows, int cols) { log_softmax_kernel<<<(rows + 7) / 8, 256>>>(x, y, rows, cols); }
