# corpus: task=index_add family=scatter format=cuda_extension backend=cpp techniques=integer_input
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, index):
        y = torch.zeros(64, x.shape[1])
        cuda_extension.scatter(x, index, y, x.shape[0], x.shape[1])
        return y
