extern "C" void prelu(const float* x, const float* w, float* y, long images, long channels, long plane) {
    #pragma omp parallel for collapse(2)
    for (long b = 0; b < images; b++)
        for (long c = 0; c < channels; c++) {
            const float* p = x + (b * channels + c) * plane;
            float* q = y + (b * channels + c) * plane;
            for (long i = 0; i < plane; i++) q[i] = p[i] > 0.0f ? p[i] : w[c] * p[i];
        }
}
