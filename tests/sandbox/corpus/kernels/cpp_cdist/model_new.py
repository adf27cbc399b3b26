# corpus: task=cdist family=distance format=cuda_extension backend=cpp techniques=views
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0] * b.shape[0])
        cuda_extension.l1(a, b, y, a.shape[0], b.shape[0], a.shape[1])
        return y.view(a.shape[0], b.shape[0])
