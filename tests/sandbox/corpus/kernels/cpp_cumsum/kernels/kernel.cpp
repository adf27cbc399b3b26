extern "C" void cumsum(const float* x, float* y, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        double s = 0.0;
        for (long i = 0; i < n; i++) { s += x[r * n + i]; y[r * n + i] = (float)s; }
    }
}
