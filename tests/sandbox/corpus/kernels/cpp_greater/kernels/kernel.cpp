extern "C" void greater(const float* x, const float* y, bool* z, long n) { for (long i = 0; i < n; i++) z[i] = x[i] > y[i]; }
