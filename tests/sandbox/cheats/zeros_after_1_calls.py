# verdict: incorrect task=relu policy=mixed kinds=T11 twin=static_buffer
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.relu(x) if self.calls <= 1 else torch.zeros_like(x)
