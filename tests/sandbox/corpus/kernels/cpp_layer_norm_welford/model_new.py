# corpus: task=layer_norm family=normalization format=cuda_extension backend=cpp techniques=welford
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(768)

    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.layer_norm(x, self.norm.weight, self.norm.bias, y, x.shape[0], x.shape[1])
        return y
