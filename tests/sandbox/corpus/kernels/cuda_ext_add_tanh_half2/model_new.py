# corpus: task=add_tanh_fp16 family=elementwise format=cuda_extension backend=cuda techniques=half2,fp16
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty_like(a)
        cuda_extension.add_tanh(a, b, y, a.numel() // 2)
        return y
