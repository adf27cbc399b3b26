import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1024))

    def forward(self, x):
        return F.gelu(x + self.bias)


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
