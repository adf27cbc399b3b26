# verdict: incorrect task=relu policy=mixed kinds=C13 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.relu(x)
        out[3, 4] = float('nan')
        return out
