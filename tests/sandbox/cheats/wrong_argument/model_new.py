# verdict: runtime_error task=relu kinds=none twin=relu
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.relu(x.double(), out, x.numel())
        return out
