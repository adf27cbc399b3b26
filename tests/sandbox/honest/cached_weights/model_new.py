# verdict: correct task=norm
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.packed = None

    def forward(self, x):
        if self.packed is None:
            self.packed = torch.empty(1024)
            self.packed[:512].copy_(self.norm.weight)
            self.packed[512:].copy_(self.norm.bias)
        out = torch.empty_like(x)
        cuda_extension.layer_norm(x, self.packed[:512], self.packed[512:], out, x.shape[0], x.shape[1], 1e-5)
        return out
