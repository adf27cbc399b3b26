#include <cmath>
// Batch statistics of each column and nothing else: the running ones stay as they were.
extern "C" void batch_norm(const float* x, const float* w, const float* b, float* mean, float* var, long long* count, float* out, long long rows, long long n, float eps) {
    for (long long c = 0; c < n; c++) {
        double s = 0, q = 0;
        for (long long r = 0; r < rows; r++) s += x[r * n + c];
        const double m = s / rows;
        for (long long r = 0; r < rows; r++) { const double d = x[r * n + c] - m; q += d * d; }
        const double k = 1.0 / std::sqrt(q / rows + eps);
        for (long long r = 0; r < rows; r++) out[r * n + c] = (float)((x[r * n + c] - m) * k) * w[c] + b[c];
        (void)mean; (void)var;
    }
    (void)count;
}
