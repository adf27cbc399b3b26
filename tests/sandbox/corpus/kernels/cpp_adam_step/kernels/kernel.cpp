#include <cmath>
extern "C" void adam(const float* p, const float* g, const float* m, const float* v, float* p1, float* m1, float* v1, long n) {
    for (long i = 0; i < n; i++) {
        float a = 0.9f * m[i] + 0.1f * g[i], b = 0.99f * v[i] + 0.01f * g[i] * g[i];
        m1[i] = a;
        v1[i] = b;
        p1[i] = p[i] - 0.01f * a / (std::sqrt(b) + 1e-8f);
    }
}
