# verdict: correct task=relu
import functools
import operator

import cuda_extension
import torch
import torch.nn as nn


def open(x):
    return torch.empty_like(x)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernels = {"relu": cuda_extension.relu}
        self.block = 256

    def blocks(self, n):
        return (n + self.block - 1) // self.block

    def forward(self, x):
        n = functools.reduce(operator.mul, x.shape, 1)
        assert self.blocks(n) * self.block >= n
        out = open(x)
        self.kernels["relu"](x, out, n)
        return out
