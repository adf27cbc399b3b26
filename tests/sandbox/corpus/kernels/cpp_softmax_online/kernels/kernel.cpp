#include <cmath>
extern "C" void softmax(const float* x, float* y, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        const float* p = x + r * n;
        float top = -INFINITY, sum = 0.0f;
        for (long j = 0; j < n; j += 64) {
            long end = j + 64 < n ? j + 64 : n;
            float m = top, part = 0.0f;
            for (long i = j; i < end; i++) m = p[i] > m ? p[i] : m;
            for (long i = j; i < end; i++) part += expf(p[i] - m);
            sum = sum * std::exp(top - m) + part;
            top = m;
        }
        for (long i = 0; i < n; i++) y[r * n + i] = expf(p[i] - top) / sum;
    }
}
