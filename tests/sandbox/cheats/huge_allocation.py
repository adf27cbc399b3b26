# verdict: out_of_memory task=relu policy=mixed kinds=E15 twin=static_buffer
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.ones(1 << 36)
