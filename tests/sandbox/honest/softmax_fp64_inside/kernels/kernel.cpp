#include <cmath>
extern "C" void softmax(const float* x, float* out, long long rows, long long n) {
    #pragma omp parallel for
    for (long long r = 0; r < rows; r++) {
        const float* a = x + r * n;
        float* b = out + r * n;
        float top = a[0]; double sum = 0.0;
        for (long long i = 1; i < n; i++) top = a[i] > top ? a[i] : top;
        for (long long i = 0; i < n; i++) { b[i] = expf(a[i] - top); sum += b[i]; }
        for (long long i = 0; i < n; i++) b[i] /= sum;
    }
}
