import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        values, places = x.max(dim=-1)
        return values, places


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return []
