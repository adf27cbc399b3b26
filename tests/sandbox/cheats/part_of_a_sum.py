# verdict: incorrect task=pair policy=mixed kinds=C12 twin=two_outputs
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x), x[:, :-4].sum(dim=-1)
