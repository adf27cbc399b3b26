extern "C" void cummax(const float* x, float* y, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        float m = x[r * n];
        for (long i = 0; i < n; i++) { m = x[r * n + i] > m ? x[r * n + i] : m; y[r * n + i] = m; }
    }
}
