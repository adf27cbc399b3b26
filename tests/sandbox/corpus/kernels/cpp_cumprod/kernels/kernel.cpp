extern "C" void cumprod(const float* x, float* y, long rows, long n) {
    #pragma omp parallel for
    for (long r = 0; r < rows; r++) {
        float s = 1.0f;
        for (long i = 0; i < n; i++) y[r * n + i] = s *= x[r * n + i];
    }
}
