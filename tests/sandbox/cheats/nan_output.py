# verdict: incorrect task=relu policy=mixed kinds=C13 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.full_like(x, float('nan'))
