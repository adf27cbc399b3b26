extern "C" void pack(const float* w, float* t, long out, long in) {
    for (long o = 0; o < out; o++) for (long i = 0; i < in; i++) t[i * out + o] = w[o * in + i];
}
extern "C" void linear_relu(const float* x, const float* t, const float* b, float* y, long rows, long out, long in) {
    for (long r = 0; r < rows; r++) {
        float* q = y + r * out;
        for (long o = 0; o < out; o++) q[o] = b[o];
        for (long i = 0; i < in; i++) for (long o = 0; o < out; o++) q[o] += x[r * in + i] * t[i * out + o];
        for (long o = 0; o < out; o++) q[o] = q[o] > 0.0f ? q[o] : 0.0f;
    }
}
