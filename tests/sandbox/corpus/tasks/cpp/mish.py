import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return F.mish(x)


def get_inputs():
    return [torch.randn(128, 256)]


def get_init_inputs():
    return []
