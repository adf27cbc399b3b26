# verdict: incorrect task=relu policy=mixed kinds=T11 twin=static_buffer
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        out = torch.relu(x)
        if self.calls % 40 == 39:
            out.mul_(0.9)
        return out
