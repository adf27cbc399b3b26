#include <cmath>
extern "C" void l1(const float* a, const float* b, float* y, long m, long n, long d) {
    for (long i = 0; i < m; i++) for (long j = 0; j < n; j++) {
        float s = 0.0f;
        for (long e = 0; e < d; e++) s += std::fabs(a[i * d + e] - b[j * d + e]);
        y[i * n + j] = s;
    }
}
