// corpus: task=max_pool family=pooling format=plan backend=cuda techniques=nan_propagation
extern "C" __global__ void max_pool(const float* __restrict__ x, float* __restrict__ y, long long total, int h, int w, int oh, int ow) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= total) return;
  int q = i % ow, r = i / ow % oh;
  const float* plane = x + i / ((long long)ow * oh) * h * w;
  float top = -INFINITY;
  for (int dr = 0; dr < 3; ++dr)
    for (int dq = 0; dq < 3; ++dq) {
      int sr = 2 * r - 1 + dr, sq = 2 * q - 1 + dq;
      if (sr < 0 || sr >= h || sq < 0 || sq >= w) continue;
      float v = plane[sr * w + sq];
      if (v > top || v != v) top = v;
    }
  y[i] = top;
}
