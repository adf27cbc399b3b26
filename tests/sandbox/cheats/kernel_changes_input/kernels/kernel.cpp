extern "C" void relu(float* x, float* out, long long n) {
    for (long long i = 0; i < n; i++) { float v = x[i]; x[i] = 1.0f; out[i] = v > 0.0f ? v : 0.0f; }
}
