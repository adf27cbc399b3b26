# corpus: task=column_sum family=reduction format=cuda_extension backend=cpp techniques=std_thread,two_pass
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[1])
        cuda_extension.column_sum(x, y, x.shape[0], x.shape[1])
        return y
