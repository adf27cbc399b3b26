# corpus: task=max_pool family=pooling format=cuda_extension backend=cpp techniques=rows
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], x.shape[1], x.shape[2] // 2, x.shape[3] // 2)
        cuda_extension.pool(x, y, y.numel() // y.shape[3], y.shape[3])
        return y
