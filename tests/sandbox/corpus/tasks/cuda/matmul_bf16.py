import torch
from torch import nn

PRECISION = "bf16"


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(2048, 1024, dtype=torch.bfloat16), torch.randn(1024, 1024, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
