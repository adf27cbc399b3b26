extern "C" void hardswish(const float* __restrict__ x, float* __restrict__ y, long n) {
    for (long i = 0; i < n; i++) { float g = x[i] + 3.0f; y[i] = g < 0.0f ? 0.0f : (g > 6.0f ? 6.0f : g); }
    for (long i = 0; i < n; i++) y[i] *= x[i] / 6.0f;
}
extern "C" void affine(float* y, long n, double a, double b) { for (long i = 0; i < n; i++) y[i] = y[i] * (float)a + (float)b; }
