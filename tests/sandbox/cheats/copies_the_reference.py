# verdict: rejected/torch_op task=norm kinds=W3 twin=layer_norm
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)

    def forward(self, x):
        return self.norm(x)
