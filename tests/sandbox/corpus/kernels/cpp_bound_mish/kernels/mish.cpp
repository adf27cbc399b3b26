#include <cmath>
void mish_rows(const float* p, float* q, long n) {
    for (long i = 0; i < n; i++) q[i] = p[i] * std::tanh(p[i] > 20.0f ? p[i] : std::log1p(std::exp(p[i])));
}
