import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return F.max_pool2d(x, 2)


def get_inputs():
    return [torch.randn(8, 32, 32, 32)]


def get_init_inputs():
    return []
