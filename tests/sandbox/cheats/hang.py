# verdict: timeout task=relu policy=mixed kinds=E15 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        while True:
            pass
