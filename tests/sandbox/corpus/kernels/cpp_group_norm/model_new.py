# corpus: task=group_norm family=normalization format=cuda_extension backend=cpp techniques=openmp,two_pass
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(8, 32)

    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.group_norm(x, self.norm.weight, self.norm.bias, y, x.shape[0], x.shape[1], x.shape[2] * x.shape[3], 8)
        return y
