# verdict: incorrect/contract task=pair policy=mixed
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return [torch.relu(x), x.sum(dim=-1)]
