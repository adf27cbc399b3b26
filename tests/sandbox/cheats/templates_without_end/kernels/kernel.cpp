template <int N> struct F { static constexpr long v = F<N - 1>::v + F<N - 2>::v; };
long use = F<100000>::v;

extern "C" void relu(const float* x, float* out, long long n) {
    for (long long i = 0; i < n; i++) out[i] = x[i] > 0.0f ? x[i] : (x[i] == x[i] ? 0.0f : x[i]);
}
