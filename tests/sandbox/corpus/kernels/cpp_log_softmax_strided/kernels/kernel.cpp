#include <cmath>
#include <vector>
extern "C" void log_softmax(const float* x, float* y, long outer, long n, long inner) {
    std::vector<float> top(inner), sum(inner);
    for (long o = 0; o < outer; o++) {
        const float* p = x + o * n * inner;
        for (long i = 0; i < inner; i++) { top[i] = p[i]; sum[i] = 0.0f; }
        for (long c = 1; c < n; c++) for (long i = 0; i < inner; i++) top[i] = p[c * inner + i] > top[i] ? p[c * inner + i] : top[i];
        for (long c = 0; c < n; c++) for (long i = 0; i < inner; i++) sum[i] += expf(p[c * inner + i] - top[i]);
        for (long i = 0; i < inner; i++) top[i] += std::log(sum[i]);
        for (long c = 0; c < n; c++) for (long i = 0; i < inner; i++) y[(o * n + c) * inner + i] = p[c * inner + i] - top[i];
    }
}
