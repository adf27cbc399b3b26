extern "C" void conv(const float* x, const float* w, const float* b, float* y, long images, long cin, long cout, long h, long wd) {
    for (long n = 0; n < images; n++)
        for (long o = 0; o < cout; o++) {
            float* q = y + (n * cout + o) * h * wd;
            for (long i = 0; i < h * wd; i++) q[i] = b[o];
            for (long c = 0; c < cin; c++)
                for (long u = -1; u <= 1; u++)
                    for (long v = -1; v <= 1; v++) {
                        float k = w[((o * cin + c) * 3 + u + 1) * 3 + v + 1];
                        const float* p = x + (n * cin + c) * h * wd;
                        for (long i = u < 0 ? 1 : 0; i < h && i + u < h; i++)
                            for (long j = v < 0 ? 1 : 0; j < wd && j + v < wd; j++) q[i * wd + j] += k * p[(i + u) * wd + j + v];
                    }
        }
}
