# verdict: incorrect/inputs_changed task=relu policy=mixed kinds=C3 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.relu(x)
        x.zero_()
        return out
