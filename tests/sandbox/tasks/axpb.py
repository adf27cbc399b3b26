import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, x, y):
        return torch.relu(x * self.a + y) * 0.5


def get_inputs():
    return [torch.rand(256, 512), torch.rand(256, 512)]


def get_init_inputs():
    return [2.0]
