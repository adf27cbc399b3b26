# corpus: task=gelu_tanh family=activation format=cuda_extension backend=cpp techniques=vector_libm
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.gelu(x, y, x.numel())
        return y
