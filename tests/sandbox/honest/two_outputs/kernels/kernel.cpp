extern "C" void both(const float* x, float* out, float* total, long long rows, long long n) {
    for (long long r = 0; r < rows; r++) {
        float sum = 0.0f;
        for (long long i = 0; i < n; i++) { float v = x[r * n + i]; out[r * n + i] = v > 0.0f ? v : 0.0f; sum += v; }
        total[r] = sum;
    }
}
