# corpus: task=transpose_scale family=layout format=cuda_extension backend=cpp techniques=blocked
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], x.shape[2], x.shape[1])
        cuda_extension.transpose(x, y, x.shape[0], x.shape[1], x.shape[2])
        return y
