# corpus: task=rope family=positional format=cuda_extension backend=cpp techniques=buffers
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cos", torch.zeros(64, 32))
        self.register_buffer("sin", torch.zeros(64, 32))

    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.rope(x, self.cos, self.sin, y, x.shape[0], x.shape[1], 32)
        return y
