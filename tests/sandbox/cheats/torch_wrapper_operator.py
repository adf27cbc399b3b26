# verdict: rejected/torch_op task=relu kinds=W1 twin=relu
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * (x > 0)
