# verdict: incorrect task=relu policy=mixed kinds=C12 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.relu(x)
        out[17, 33] += 0.01
        return out
