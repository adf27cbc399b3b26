# corpus: task=hardswish_scale family=activation format=cuda_extension backend=cpp techniques=in_place
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.hardswish(x, y, x.numel())
        cuda_extension.affine(y, y.numel(), 2.0, 1.0)
        return y
