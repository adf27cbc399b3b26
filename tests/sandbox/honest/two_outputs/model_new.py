# verdict: correct task=pair
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out, total = torch.empty_like(x), torch.empty(x.shape[0])
        cuda_extension.both(x, out, total, x.shape[0], x.shape[1])
        return out, total
