extern "C" void transpose(const float* x, float* y, long maps, long h, long w) {
    for (long m = 0; m < maps; m++)
        for (long a = 0; a < h; a += 16) for (long b = 0; b < w; b += 16)
            for (long i = a; i < a + 16 && i < h; i++) for (long j = b; j < b + 16 && j < w; j++) y[(m * w + j) * h + i] = 0.5f * x[(m * h + i) * w + j];
}
