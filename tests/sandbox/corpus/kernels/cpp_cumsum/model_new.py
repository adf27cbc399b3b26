# corpus: task=cumsum family=scan format=cuda_extension backend=cpp techniques=fp64_inside
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.cumsum(x, y, x.shape[0], x.shape[1])
        return y
