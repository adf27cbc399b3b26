# corpus: task=greater family=comparison format=cuda_extension backend=cpp techniques=bool_output
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        z = torch.empty(x.shape, dtype=torch.bool)
        cuda_extension.greater(x, y, z, x.numel())
        return z
