# verdict: rejected/process task=relu kinds=E9 twin=thread_per_call
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.relu(x, out, x.numel())
        return out
