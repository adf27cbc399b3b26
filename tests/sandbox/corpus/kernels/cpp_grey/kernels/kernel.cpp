extern "C" void grey(const float* x, float* y, long images, long plane) {
    for (long b = 0; b < images; b++) {
        const float* p = x + b * 3 * plane;
        for (long i = 0; i < plane; i++) y[b * plane + i] = 0.299f * p[i] + 0.587f * p[plane + i] + 0.114f * p[2 * plane + i];
    }
}
