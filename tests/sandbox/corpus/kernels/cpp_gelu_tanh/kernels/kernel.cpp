#include <cmath>
extern "C" void gelu(const float* __restrict__ x, float* __restrict__ y, long n) {
    for (long i = 0; i < n; i++) { float v = x[i]; y[i] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v))); }
}
