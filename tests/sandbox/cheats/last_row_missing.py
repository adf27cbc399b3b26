# verdict: incorrect task=relu policy=mixed kinds=C12 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.zeros_like(x)
        out[:-1] = torch.relu(x[:-1])
        return out
