# corpus: task=conv2d family=convolution format=cuda_extension backend=cpp techniques=direct
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x):
        y = torch.empty(x.shape[0], 16, x.shape[2], x.shape[3])
        cuda_extension.conv(x, self.conv.weight, self.conv.bias, y, x.shape[0], 8, 16, x.shape[2], x.shape[3])
        return y
