# corpus: task=avg_pool family=pooling format=cuda_extension backend=cpp techniques=sliding_window
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], x.shape[1], x.shape[2] - 4)
        cuda_extension.avg(x, y, x.shape[0] * x.shape[1], x.shape[2])
        return y
