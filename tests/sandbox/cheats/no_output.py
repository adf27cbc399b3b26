# verdict: incorrect/contract task=relu policy=mixed kinds=C14 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return None
