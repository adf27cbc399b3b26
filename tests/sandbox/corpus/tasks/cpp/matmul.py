import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(192, 192), torch.randn(192, 192)]


def get_init_inputs():
    return []
