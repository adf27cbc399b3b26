#include <thread>
#include <vector>
static void part(const float* x, double* s, long first, long last, long n) {
    for (long r = first; r < last; r++) for (long i = 0; i < n; i++) s[i] += x[r * n + i];
}
extern "C" void column_sum(const float* x, float* y, long rows, long n) {
    std::vector<double> a(n, 0.0), b(n, 0.0);
    std::thread helper(part, x, a.data(), 0L, rows / 2, n);
    part(x, b.data(), rows / 2, rows, n);
    helper.join();
    for (long i = 0; i < n; i++) y[i] = (float)(a[i] + b[i]);
}
