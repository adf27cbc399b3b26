import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(16, 16, 3, dilation=4)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(4, 16, 512)]


def get_init_inputs():
    return []
