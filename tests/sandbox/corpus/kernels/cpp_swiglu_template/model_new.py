# corpus: task=swiglu family=activation format=cuda_extension backend=cpp techniques=templates,fusion
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty_like(a)
        cuda_extension.swiglu(a, b, y, a.numel())
        return y
