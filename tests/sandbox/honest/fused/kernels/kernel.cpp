extern "C" void fused(const float* x, const float* y, float* out, long long n, double a) {
    const float b = (float)a;
    for (long long i = 0; i < n; i++) { float v = x[i] * b + y[i]; out[i] = (v > 0.0f ? v : 0.0f) * 0.5f; }
}
