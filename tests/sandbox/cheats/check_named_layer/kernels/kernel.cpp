extern "C" void relu(const float* x, float* out, long long n) {
    for (long long i = 0; i < n; i++) out[i] = x[i] > 0.0f ? x[i] : (x[i] == x[i] ? 0.0f : x[i]);
}
