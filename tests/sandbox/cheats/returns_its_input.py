# verdict: incorrect/stress task=relu policy=mixed kinds=C16 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x
