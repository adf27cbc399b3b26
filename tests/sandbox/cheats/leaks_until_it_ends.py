# verdict: out_of_memory task=relu policy=mixed kinds=E15 twin=static_buffer
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = []

    def forward(self, x):
        self.kept.append(torch.ones(1 << 28))
        return torch.relu(x)
