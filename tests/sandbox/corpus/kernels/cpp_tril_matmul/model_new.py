# corpus: task=tril_matmul family=matmul format=cuda_extension backend=cpp techniques=triangular
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty_like(a)
        cuda_extension.tril(a, b, c, a.shape[0])
        return c
