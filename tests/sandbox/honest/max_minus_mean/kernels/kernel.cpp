extern "C" void max_minus_mean(const float* x, float* out, long long rows, long long n) {
    for (long long r = 0; r < rows; r++) {
        const float* a = x + r * n;
        double sum = 0;
        float top = a[0];
        for (long long i = 0; i < n; i++) { top = a[i] > top || a[i] != a[i] ? a[i] : top; sum += a[i]; }
        out[r] = (float)(top - sum / n);
    }
}
