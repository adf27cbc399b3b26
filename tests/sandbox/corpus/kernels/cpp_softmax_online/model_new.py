# corpus: task=softmax family=softmax format=cuda_extension backend=cpp techniques=online,vector_libm
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.softmax(x, y, x.shape[0], x.shape[1])
        return y
