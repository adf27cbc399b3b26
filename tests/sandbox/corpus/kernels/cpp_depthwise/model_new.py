# corpus: task=depthwise family=convolution format=cuda_extension backend=cpp techniques=depthwise,openmp
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(32, 32, 3, groups=32, bias=False)

    def forward(self, x):
        y = torch.empty(x.shape[0], 32, x.shape[2] - 2, x.shape[3] - 2)
        cuda_extension.depthwise(x, self.conv.weight, y, x.shape[0] * 32, 32, x.shape[2], x.shape[3])
        return y
