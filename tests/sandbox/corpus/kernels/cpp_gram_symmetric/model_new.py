# corpus: task=gram family=matmul format=cuda_extension backend=cpp techniques=symmetric
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        c = torch.empty(x.shape[0], x.shape[0])
        cuda_extension.gram(x, c, x.shape[0], x.shape[1])
        return c
