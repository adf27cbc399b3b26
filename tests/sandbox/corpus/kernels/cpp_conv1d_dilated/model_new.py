# corpus: task=conv1d_dilated family=convolution format=cuda_extension backend=cpp techniques=dilated
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(16, 16, 3, dilation=4)

    def forward(self, x):
        y = torch.empty(x.shape[0], 16, x.shape[2] - 8)
        cuda_extension.conv(x, self.conv.weight, self.conv.bias, y, x.shape[0], 16, x.shape[2], y.shape[2])
        return y
