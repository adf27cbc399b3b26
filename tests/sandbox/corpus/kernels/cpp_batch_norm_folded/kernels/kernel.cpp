#include <cmath>
extern "C" void fold(const float* w, const float* b, const float* mean, const float* var, float* k, float* c, long n) {
    for (long i = 0; i < n; i++) { k[i] = w[i] / std::sqrt(var[i] + 1e-5f); c[i] = b[i] - mean[i] * k[i]; }
}
extern "C" void scale_relu(const float* x, const float* k, const float* c, float* y, long planes, long channels, long plane) {
    for (long p = 0; p < planes; p++)
        for (long i = 0; i < plane; i++) { float v = x[p * plane + i] * k[p % channels] + c[p % channels]; y[p * plane + i] = v > 0.0f ? v : 0.0f; }
}
