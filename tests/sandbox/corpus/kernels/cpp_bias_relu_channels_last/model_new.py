# corpus: task=bias_relu_channels_last family=elementwise format=cuda_extension backend=cpp techniques=channels_last,views
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(32))

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        y = torch.empty_like(x)
        cuda_extension.bias_relu(x, self.bias, y, x.numel() // 32, 32)
        return y.permute(0, 3, 1, 2)
