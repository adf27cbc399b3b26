# verdict: incorrect task=norm policy=mixed kinds=C9 twin=layer_norm
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)

    def forward(self, x):
        return x * self.norm.weight + self.norm.bias
