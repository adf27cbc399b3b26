extern "C" void rope(const float* x, const float* cosine, const float* sine, float* y, long heads, long n, long d) {
    for (long r = 0; r < heads * n; r++) {
        const float *a = x + r * 2 * d, *b = a + d, *c = cosine + r % n * d, *s = sine + r % n * d;
        for (long i = 0; i < d; i++) { y[r * 2 * d + i] = a[i] * c[i] - b[i] * s[i]; y[r * 2 * d + d + i] = a[i] * s[i] + b[i] * c[i]; }
    }
}
