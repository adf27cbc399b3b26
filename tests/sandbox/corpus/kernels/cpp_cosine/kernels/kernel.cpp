#include <cmath>
extern "C" void cosine(const float* a, const float* b, float* y, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        float s = 0.0f, p = 0.0f, q = 0.0f;
        for (long i = 0; i < n; i++) { float u = a[r * n + i], v = b[r * n + i]; s += u * v; p += u * u; q += v * v; }
        y[r] = s / std::sqrt(p * q);
    }
}
