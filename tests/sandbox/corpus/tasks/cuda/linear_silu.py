import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 1024)

    def forward(self, x):
        return F.silu(self.linear(x))


def get_inputs():
    return [torch.randn(4096, 512)]


def get_init_inputs():
    return []
