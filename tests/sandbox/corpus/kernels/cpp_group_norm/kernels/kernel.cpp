#include <cmath>
extern "C" void group_norm(const float* x, const float* w, const float* b, float* y, long images, long channels, long plane, long groups) {
    long per = channels / groups, n = per * plane;
    #pragma omp parallel for
    for (long g = 0; g < images * groups; g++) {
        const float* p = x + g * n;
        double s = 0.0, q = 0.0;
        for (long i = 0; i < n; i++) s += p[i];
        double mean = s / n;
        for (long i = 0; i < n; i++) q += (p[i] - mean) * (p[i] - mean);
        float k = (float)(1.0 / std::sqrt(q / n + 1e-5)), m = (float)mean;
        for (long c = 0; c < per; c++) {
            long at = (g % groups) * per + c;
            for (long i = 0; i < plane; i++) y[g * n + c * plane + i] = (p[c * plane + i] - m) * k * w[at] + b[at];
        }
    }
}
