# verdict: correct task=norm
import cuda_extension
import torch
import torch.nn as nn


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)


class ModelNew(Weights):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.layer_norm(x, self.norm.weight, self.norm.bias, out, x.shape[0], x.shape[1], 1e-5)
        return out
