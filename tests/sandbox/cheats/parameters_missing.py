# verdict: incorrect/parameters task=norm policy=mixed
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x
