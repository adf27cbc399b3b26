extern "C" void matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, long m, long n, long k) {
    for (long i = 0; i < m * n; i++) c[i] = 0.0f;
    const long tile = 64;
    for (long p = 0; p < k; p += tile)
        for (long i = 0; i < m; i++)
            for (long q = p; q < p + tile && q < k; q++) {
                float v = a[i * k + q];
                for (long j = 0; j < n; j++) c[i * n + j] += v * b[q * n + j];
            }
}
