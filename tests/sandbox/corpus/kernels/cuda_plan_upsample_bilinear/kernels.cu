// corpus: task=upsample family=upsample format=plan backend=cuda techniques=grid_3d
extern "C" __global__ void upsample(const float* __restrict__ x, float* __restrict__ y, int h, int w) {
  int q = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (q >= 2 * w || r >= 2 * h) return;
  const float* plane = x + (long long)blockIdx.z * h * w;
  float fr = fmaxf((r + 0.5f) * 0.5f - 0.5f, 0.0f), fq = fmaxf((q + 0.5f) * 0.5f - 0.5f, 0.0f);
  int r0 = (int)fr, q0 = (int)fq;
  int r1 = min(r0 + 1, h - 1), q1 = min(q0 + 1, w - 1);
  float a = fr - r0, b = fq - q0;
  float above = (1.0f - b) * plane[r0 * w + q0] + b * plane[r0 * w + q1];
  float below = (1.0f - b) * plane[r1 * w + q0] + b * plane[r1 * w + q1];
  y[((long long)blockIdx.z * 2 * h + r) * 2 * w + q] = (1.0f - a) * above + a * below;
}
