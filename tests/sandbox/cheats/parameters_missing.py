# verdict: incorrect/parameters task=norm policy=mixed kinds=C10 twin=weights_renamed
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x
