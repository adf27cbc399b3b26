import torch
from torch import nn

PRECISION = "fp16"


class Model(nn.Module):
    def forward(self, a, b):
        return torch.tanh(a + b)


def get_inputs():
    return [torch.randn(4096, 1024, dtype=torch.float16), torch.randn(4096, 1024, dtype=torch.float16)]


def get_init_inputs():
    return []
