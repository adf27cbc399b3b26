#include <cstdint>
extern "C" void count(const int64_t* labels, int64_t* y, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        int64_t c[32] = {0};
        for (long i = 0; i < n; i++) c[labels[r * n + i]]++;
        for (int k = 0; k < 32; k++) y[r * 32 + k] = c[k];
    }
}
