# corpus: task=rms_norm family=normalization format=cuda_extension backend=cpp techniques=avx
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512))

    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.rms_norm(x, self.weight, y, x.shape[0], x.shape[1], 1e-6)
        return y
