#include <cstdint>
extern "C" void bag(const int64_t* tokens, const float* table, float* y, long rows, long words, long d) {
    for (long r = 0; r < rows; r++) {
        for (long e = 0; e < d; e++) y[r * d + e] = 0.0f;
        for (long t = 0; t < words; t++) for (long e = 0; e < d; e++) y[r * d + e] += table[tokens[r * words + t] * d + e];
    }
}
