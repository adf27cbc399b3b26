# verdict: rejected/loader task=relu kinds=T8 twin=relu
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.relu(x, out, x.numel())
        return out
