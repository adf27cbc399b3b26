# verdict: rejected/torch_op task=relu kinds=W1 twin=relu
import torch
import torch.nn as nn
work = torch.relu


class ModelNew(nn.Module):
    def forward(self, x):
        return work(x)
