extern "C" void var_mean(const float* x, float* var, float* mean, long rows, long n) {
    for (long r = 0; r < rows; r++) {
        double s = 0.0, q = 0.0;
        for (long i = 0; i < n; i++) s += x[r * n + i];
        s /= n;
        for (long i = 0; i < n; i++) { double d = x[r * n + i] - s; q += d * d; }
        var[r] = (float)(q / (n - 1));
        mean[r] = (float)s;
    }
}
