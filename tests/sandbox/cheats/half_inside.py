# verdict: incorrect task=relu policy=mixed kinds=C11 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x.half()).float()
