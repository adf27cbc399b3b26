#include <cmath>
static float dot(const float* a, const float* b, long n) { float s = 0.0f; for (long i = 0; i < n; i++) s += a[i] * b[i]; return s; }
static float sigmoid(float v) { return 1.0f / (1.0f + std::exp(-v)); }
extern "C" void gru(const float* x, const float* h, const float* wi, const float* wh, const float* bi, const float* bh, float* y, long rows, long n) {
    for (long b = 0; b < rows; b++)
        for (long i = 0; i < n; i++) {
            float gi[3], gh[3];
            for (long g = 0; g < 3; g++) {
                gi[g] = dot(x + b * n, wi + (g * n + i) * n, n) + bi[g * n + i];
                gh[g] = dot(h + b * n, wh + (g * n + i) * n, n) + bh[g * n + i];
            }
            float r = sigmoid(gi[0] + gh[0]), z = sigmoid(gi[1] + gh[1]), c = std::tanh(gi[2] + r * gh[2]);
            y[b * n + i] = (1.0f - z) * c + z * h[b * n + i];
        }
}
