# corpus: task=top_eight family=sort format=cuda_extension backend=cpp techniques=insertion
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], 8)
        cuda_extension.top(x, y, x.shape[0], x.shape[1])
        return y
