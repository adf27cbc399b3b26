extern "C" void keep(const float* x, long long n) { (void)x; (void)n; }
