extern "C" void conv(const float* x, const float* w, const float* b, float* y, long images, long c, long n, long m) {
    for (long z = 0; z < images; z++)
        for (long o = 0; o < c; o++) {
            float* q = y + (z * c + o) * m;
            for (long i = 0; i < m; i++) q[i] = b[o];
            for (long e = 0; e < c; e++) for (long k = 0; k < 3; k++)
                for (long i = 0; i < m; i++) q[i] += w[(o * c + e) * 3 + k] * x[(z * c + e) * n + i + 4 * k];
        }
}
