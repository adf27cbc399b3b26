import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x, cache):
        cache[:, -1] = x
        return (cache * x[:, None]).sum(-1)


def get_inputs():
    return [torch.randn(64, 128), torch.randn(64, 32, 128)]


def get_init_inputs():
    return []
