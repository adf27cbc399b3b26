#include <cmath>
extern "C" void causal(const float* x, float* y, long maps, long n) {
    for (long r = 0; r < maps * n; r++) {
        long last = r % n;
        const float* p = x + r * n;
        float* q = y + r * n;
        float top = p[0], sum = 0.0f;
        for (long i = 1; i <= last; i++) top = p[i] > top ? p[i] : top;
        for (long i = 0; i <= last; i++) { q[i] = expf(p[i] - top); sum += q[i]; }
        for (long i = 0; i <= last; i++) q[i] /= sum;
        for (long i = last + 1; i < n; i++) q[i] = 0.0f;
    }
}
