import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return F.avg_pool1d(x, 5, stride=1)


def get_inputs():
    return [torch.randn(16, 16, 512)]


def get_init_inputs():
    return []
