import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, index):
        return torch.gather(x, 1, index)


def get_inputs():
    return [torch.randn(4096, 1024), torch.randint(0, 1024, (4096, 256))]


def get_init_inputs():
    return []
