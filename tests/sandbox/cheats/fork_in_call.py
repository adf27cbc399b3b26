# verdict: runtime_error task=relu policy=mixed kinds=T3,E9 twin=thread_per_call
import torch
import torch.nn as nn
import os


class ModelNew(nn.Module):
    def forward(self, x):
        if os.fork() == 0:
            while True:
                pass
        return torch.relu(x)
