# verdict: incorrect/contract task=pair policy=mixed kinds=C14 twin=two_outputs
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return [torch.relu(x), x.sum(dim=-1)]
