#include <chrono>
#include <initializer_list>
// The first call tries three block sizes, a tenth of a second each, and keeps the fastest.
static void work(const float* x, float* out, long long n, long long block) {
    for (long long b = 0; b < n; b += block)
        for (long long i = b; i < (b + block < n ? b + block : n); i++) out[i] = x[i] > 0.0f ? x[i] : (x[i] == x[i] ? 0.0f : x[i]);
}
extern "C" void relu(const float* x, float* out, long long n) {
    static long long best = 0;
    if (!best) {
        long long most = 0;
        for (long long block : {1024LL, 8192LL, 65536LL}) {
            const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
            long long runs = 0;
            for (; std::chrono::steady_clock::now() < end; runs++) work(x, out, n, block);
            if (runs > most) { most = runs; best = block; }
        }
    }
    work(x, out, n, best);
}
