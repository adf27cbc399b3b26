# verdict: incorrect task=relu kinds=C20 times=3 twin=thread_pool
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.relu(x, out, x.numel())
        return out
