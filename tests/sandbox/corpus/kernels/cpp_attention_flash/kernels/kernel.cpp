#include <cmath>
extern "C" void attention(const float* q, const float* k, const float* v, float* y, long heads, long n) {
    const long d = 32;
    for (long r = 0; r < heads * n; r++) {
        const float *a = q + r * d, *kk = k + r / n * n * d, *vv = v + r / n * n * d;
        float acc[32] = {0}, top = -INFINITY, sum = 0.0f;
        for (long j = 0; j < n; j++) {
            float s = 0.0f;
            for (long e = 0; e < d; e++) s += a[e] * kk[j * d + e];
            s *= 0.17677669529663687f;
            float m = s > top ? s : top, f = std::exp(top - m), w = std::exp(s - m);
            sum = sum * f + w;
            for (long e = 0; e < d; e++) acc[e] = acc[e] * f + w * vv[j * d + e];
            top = m;
        }
        for (long e = 0; e < d; e++) y[r * d + e] = acc[e] / sum;
    }
}
