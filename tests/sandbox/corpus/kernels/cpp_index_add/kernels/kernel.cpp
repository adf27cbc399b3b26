#include <cstdint>
extern "C" void scatter(const float* x, const int64_t* index, float* y, long rows, long d) {
    for (long r = 0; r < rows; r++) for (long e = 0; e < d; e++) y[index[r] * d + e] += x[r * d + e];
}
