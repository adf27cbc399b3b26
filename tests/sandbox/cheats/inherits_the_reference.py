# verdict: rejected/torch_op task=norm kinds=W3 twin=inherits_its_weights
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)

    def forward(self, x):
        return self.norm(x)


class ModelNew(Model):
    def forward(self, x):
        return super().forward(x)
