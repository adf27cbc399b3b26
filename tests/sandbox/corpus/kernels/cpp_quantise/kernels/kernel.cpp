#include <cmath>
#include <cstdint>
extern "C" void quantise(const float* x, int8_t* q, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        float top = 0.0f;
        for (long i = 0; i < n; i++) top = std::fabs(x[r * n + i]) > top ? std::fabs(x[r * n + i]) : top;
        float scale = top / 127.0f;
        for (long i = 0; i < n; i++) q[r * n + i] = (int8_t)std::nearbyint(x[r * n + i] / scale);
    }
}
