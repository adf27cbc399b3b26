# verdict: correct task=relu
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
torch::Tensor relu(torch::Tensor x) {
    auto out = torch::empty_like(x);
    const float* a = x.data_ptr<float>();
    float* b = out.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); i++) b[i] = a[i] > 0.0f ? a[i] : 0.0f;
    return out;
}
"""
module = load_inline(name="inline_relu", cpp_sources=SOURCE, functions=["relu"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def forward(self, x):
        return module.relu(x)
