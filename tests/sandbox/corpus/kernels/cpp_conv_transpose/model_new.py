# corpus: task=conv_transpose family=convolution format=cuda_extension backend=cpp techniques=transposed
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(16, 8, 2, stride=2)

    def forward(self, x):
        y = torch.empty(x.shape[0], 8, 2 * x.shape[2], 2 * x.shape[3])
        cuda_extension.up(x, self.conv.weight, self.conv.bias, y, x.shape[0], 16, 8, x.shape[2], x.shape[3])
        return y
