import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return x > y


def get_inputs():
    return [torch.randn(256, 512), torch.randn(256, 512)]


def get_init_inputs():
    return []
