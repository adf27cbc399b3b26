# corpus: task=cosine family=distance format=cuda_extension backend=cpp techniques=three_sums
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0])
        cuda_extension.cosine(a, b, y, a.shape[0], a.shape[1])
        return y
