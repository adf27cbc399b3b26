# verdict: incorrect/contract task=relu policy=mixed kinds=C14 twin=strides_as_the_reference
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x).t().contiguous().t()
