# verdict: correct task=max_minus_mean
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0], 1)
        cuda_extension.max_minus_mean(x, out, x.shape[0], x.shape[1])
        return out
