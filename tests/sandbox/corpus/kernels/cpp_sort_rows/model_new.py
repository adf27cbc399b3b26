# corpus: task=sort_rows family=sort format=cuda_extension backend=cpp techniques=std_algorithm
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.sort_rows(x, y, x.shape[0], x.shape[1])
        return y
