import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(32, 200, 128), torch.randn(32, 128, 240)]


def get_init_inputs():
    return []
