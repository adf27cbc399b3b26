# corpus: task=attention family=attention format=cuda_extension backend=cpp techniques=online,tiled
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        y = torch.empty_like(q)
        cuda_extension.attention(q, k, v, y, q.shape[0] * q.shape[1], q.shape[2])
        return y
