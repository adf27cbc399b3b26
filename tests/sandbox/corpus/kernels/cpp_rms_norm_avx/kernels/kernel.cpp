#include <cmath>
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
static float squares(const float* p, long n) {
    __m256 s = _mm256_setzero_ps(), t = _mm256_setzero_ps();
    for (long i = 0; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(p + i), b = _mm256_loadu_ps(p + i + 8);
        s = _mm256_fmadd_ps(a, a, s);
        t = _mm256_fmadd_ps(b, b, t);
    }
    float lane[8], sum = 0.0f;
    _mm256_storeu_ps(lane, _mm256_add_ps(s, t));
    for (float v : lane) sum += v;
    for (long i = n / 16 * 16; i < n; i++) sum += p[i] * p[i];
    return sum;
}
#else
static float squares(const float* p, long n) {
    float sum = 0.0f;
    for (long i = 0; i < n; i++) sum += p[i] * p[i];
    return sum;
}
#endif
extern "C" void rms_norm(const float* x, const float* w, float* y, long rows, long n, double eps) {
    for (long r = 0; r < rows; r++) {
        float k = 1.0f / std::sqrt(squares(x + r * n, n) / n + (float)eps);
        for (long i = 0; i < n; i++) y[r * n + i] = x[r * n + i] * k * w[i];
    }
}
