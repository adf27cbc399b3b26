extern "C" void bmm(const float* a, const float* b, float* c, long batch, long m, long n, long k) {
    #pragma omp parallel for
    for (long z = 0; z < batch; z++)
        for (long i = 0; i < m; i++)
            for (long j = 0; j < n; j++) {
                const float *p = a + (z * m + i) * k, *q = b + (z * n + j) * k;
                float s = 0.0f;
                for (long e = 0; e < k; e++) s += p[e] * q[e];
                c[(z * m + i) * n + j] = s;
            }
}
