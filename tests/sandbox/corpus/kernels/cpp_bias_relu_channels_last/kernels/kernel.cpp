extern "C" void bias_relu(const float* x, const float* b, float* y, long pixels, long channels) {
    for (long p = 0; p < pixels; p++)
        for (long c = 0; c < channels; c++) { float v = x[p * channels + c] + b[c]; y[p * channels + c] = v > 0.0f ? v : 0.0f; }
}
