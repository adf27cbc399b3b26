# verdict: runtime_error task=relu policy=mixed kinds=E7 twin=relu
import torch
import torch.nn as nn
import ctypes


class ModelNew(nn.Module):
    def forward(self, x):
        ctypes.string_at(0)
