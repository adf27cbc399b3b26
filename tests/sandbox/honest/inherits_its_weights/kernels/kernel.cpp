#include <cmath>
#include <cstdint>
extern "C" {
/* Words that a careless scan would trip over: fork(), system("x"), dlopen. */
void layer_norm(const float* __restrict__ x, const float* w, const float* b, float* __restrict__ out, int64_t rows, int64_t n, double eps) {
    for (int64_t r = 0; r < rows; r++) {
        double s = 0, q = 0;
        for (int64_t i = 0; i < n; i++) s += x[r * n + i];
        double m = s / n;
        for (int64_t i = 0; i < n; i++) { double d = x[r * n + i] - m; q += d * d; }
        double k = 1.0 / std::sqrt(q / n + eps);
        for (int64_t i = 0; i < n; i++) out[r * n + i] = (float)((x[r * n + i] - m) * k) * w[i] + b[i];
    }
}
}
