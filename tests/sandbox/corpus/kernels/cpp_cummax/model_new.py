# corpus: task=cummax family=scan format=cuda_extension backend=cpp techniques=running
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.cummax(x, y, x.shape[0], x.shape[1])
        return y
