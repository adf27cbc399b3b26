extern "C" void tril(const float* a, const float* b, float* c, long n) {
    for (long i = 0; i < n; i++) {
        float* row = c + i * n;
        for (long j = 0; j < n; j++) row[j] = 0.0f;
        for (long k = 0; k < n; k++) for (long j = 0; j <= i; j++) row[j] += a[i * n + k] * b[k * n + j];
    }
}
