# verdict: rejected/torch_op task=relu kinds=W1 twin=relu
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        return F.relu(x)
