import torch
from torch import nn

PRECISION = "bf16"


class Model(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


def get_inputs():
    return [torch.randn(4096, 1024, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
