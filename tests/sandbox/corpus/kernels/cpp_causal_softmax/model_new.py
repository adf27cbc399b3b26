# corpus: task=causal_softmax family=softmax format=cuda_extension backend=cpp techniques=triangular
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.causal(x, y, x.shape[0], x.shape[1])
        return y
