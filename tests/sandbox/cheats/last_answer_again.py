# verdict: incorrect task=relu policy=mixed kinds=T9,W10 twin=static_buffer
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        old, self.last = self.last, torch.relu(x)
        return old if old is not None else self.last
