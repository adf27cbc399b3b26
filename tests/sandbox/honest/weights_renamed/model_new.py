# verdict: correct task=norm
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(512))
        self.shift = nn.Parameter(torch.zeros(512))

    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.layer_norm(x, self.scale, self.shift, out, x.shape[0], x.shape[1], 1e-5)
        return out
