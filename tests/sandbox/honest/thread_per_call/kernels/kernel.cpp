#include <thread>
extern "C" void relu(const float* x, float* out, long long n) {
    std::thread helper([=] { for (long long i = 0; i < n / 2; i++) out[i] = x[i] > 0.0f ? x[i] : 0.0f; });
    for (long long i = n / 2; i < n; i++) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
    helper.join();
}
