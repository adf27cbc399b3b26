# verdict: rejected/import task=relu kinds=T7 twin=relu
import torch
import torch.nn as nn
import cuda_extension
import sys


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.relu(x, out, x.numel())
        return out
