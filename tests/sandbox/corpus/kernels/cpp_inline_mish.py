# corpus: task=mish family=activation format=load_inline backend=cpp techniques=load_inline
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/types.h>
#include <cmath>
torch::Tensor mish(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* p = x.data_ptr<float>();
    float* q = y.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); i++) q[i] = p[i] * std::tanh(p[i] > 20.0f ? p[i] : std::log1p(std::exp(p[i])));
    return y;
}
"""
EXTENSION = load_inline(name="corpus_mish", cpp_sources=SOURCE, functions=["mish"], extra_cflags=["-O2"], no_implicit_headers=False)


class ModelNew(nn.Module):
    def forward(self, x):
        return EXTENSION.mish(x)
