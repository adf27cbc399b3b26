extern "C" void up(const float* x, const float* w, const float* b, float* y, long images, long cin, long cout, long h, long wd) {
    for (long n = 0; n < images; n++)
        for (long o = 0; o < cout; o++)
            for (long i = 0; i < 2 * h; i++)
                for (long j = 0; j < 2 * wd; j++) {
                    float s = b[o];
                    for (long c = 0; c < cin; c++) s += x[((n * cin + c) * h + i / 2) * wd + j / 2] * w[((c * cout + o) * 2 + i % 2) * 2 + j % 2];
                    y[((n * cout + o) * 2 * h + i) * 2 * wd + j] = s;
                }
}
