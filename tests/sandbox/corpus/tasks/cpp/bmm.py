import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b.transpose(1, 2))


def get_inputs():
    return [torch.randn(16, 48, 64), torch.randn(16, 48, 64)]


def get_init_inputs():
    return []
