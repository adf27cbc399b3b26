# corpus: task=prelu family=activation format=cuda_extension backend=cpp techniques=openmp
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.PReLU(32)

    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.prelu(x, self.act.weight, y, x.shape[0], x.shape[1], x.shape[2] * x.shape[3])
        return y
