# corpus: task=adam_step family=optimizer format=cuda_extension backend=cpp techniques=fusion,multiple_outputs,list_output
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, p, g, m, v):
        out = [torch.empty_like(p) for _ in range(3)]
        cuda_extension.adam(p, g, m, v, out[0], out[1], out[2], p.numel())
        return out
