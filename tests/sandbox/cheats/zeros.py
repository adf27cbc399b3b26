# verdict: incorrect task=relu policy=mixed kinds=C8 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)
