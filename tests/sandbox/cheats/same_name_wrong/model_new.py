# verdict: incorrect task=relu kinds=E3 twin=same_name_right
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.my_ext(x, out, x.numel())
        return out
