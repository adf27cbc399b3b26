#include <cmath>
// tanh(v) * sigmoid(v), with e = exp(-|v|) in range for every v.
extern "C" void gate(const float* x, float* out, long long n) {
    for (long long i = 0; i < n; i++) {
        const float v = x[i], a = std::fabs(v), e = std::exp(-a);
        const float t = std::copysign(a < 0.3f ? std::tanh(a) : (1.0f - e * e) / (1.0f + e * e), v);
        out[i] = t * (v >= 0.0f ? 1.0f : e) / (1.0f + e);
    }
}
