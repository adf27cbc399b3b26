extern "C" void avg(const float* x, float* y, long rows, long n) {
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < n - 4; i++) { const float* p = x + r * n + i; y[r * (n - 4) + i] = (p[0] + p[1] + p[2] + p[3] + p[4]) * 0.2f; }
}
