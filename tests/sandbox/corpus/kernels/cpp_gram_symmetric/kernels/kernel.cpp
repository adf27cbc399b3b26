extern "C" void gram(const float* x, float* c, long m, long k) {
    for (long i = 0; i < m; i++)
        for (long j = 0; j <= i; j++) {
            float s = 0.0f;
            for (long e = 0; e < k; e++) s += x[i * k + e] * x[j * k + e];
            c[i * m + j] = c[j * m + i] = s;
        }
}
