# verdict: timeout task=relu policy=mixed kinds=E15,E12 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        while True:
            pass

    def forward(self, x):
        return x
