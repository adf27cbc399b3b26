#include <cstring>
extern "C" void up(const float* x, float* y, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        float* q = y + r * 4 * n;
        for (long i = 0; i < n; i++) q[2 * i] = q[2 * i + 1] = x[r * n + i];
        std::memcpy(q + 2 * n, q, 2 * n * sizeof(float));
    }
}
