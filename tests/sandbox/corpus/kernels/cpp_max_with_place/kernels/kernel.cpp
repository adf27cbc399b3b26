#include <cstdint>
extern "C" void row_max(const float* x, float* value, int64_t* place, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        long best = 0;
        for (long i = 1; i < n; i++) if (x[r * n + i] > x[r * n + best]) best = i;
        value[r] = x[r * n + best];
        place[r] = best;
    }
}
