# corpus: task=bmm family=matmul format=cuda_extension backend=cpp techniques=batched,openmp
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], a.shape[1], b.shape[1])
        cuda_extension.bmm(a, b, c, a.shape[0], a.shape[1], b.shape[1], a.shape[2])
        return c
