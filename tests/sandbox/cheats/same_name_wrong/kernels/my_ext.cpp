extern "C" void my_ext(const float* x, float* out, long long n) {
    for (long long i = 0; i < n; i++) out[i] = x[i] > 0.0f ? 2.0f * x[i] : (x[i] == x[i] ? 0.0f : x[i]);
}
