# verdict: correct task=axpb
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, x, y):
        out = torch.empty_like(x)
        cuda_extension.fused(x, y, out, x.numel(), self.a)
        return out
