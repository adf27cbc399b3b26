# corpus: task=grey family=image format=cuda_extension backend=cpp techniques=planes
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], x.shape[2], x.shape[3])
        cuda_extension.grey(x, y, x.shape[0], x.shape[2] * x.shape[3])
        return y
