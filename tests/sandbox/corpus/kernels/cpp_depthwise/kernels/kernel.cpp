extern "C" void depthwise(const float* x, const float* w, float* y, long planes, long channels, long h, long wd) {
    #pragma omp parallel for
    for (long p = 0; p < planes; p++) {
        const float *a = x + p * h * wd, *k = w + (p % channels) * 9;
        float* q = y + p * (h - 2) * (wd - 2);
        for (long i = 0; i < h - 2; i++)
            for (long j = 0; j < wd - 2; j++) {
                float s = 0.0f;
                for (int u = 0; u < 3; u++) for (int v = 0; v < 3; v++) s += k[u * 3 + v] * a[(i + u) * wd + j + v];
                q[i * (wd - 2) + j] = s;
            }
    }
}
