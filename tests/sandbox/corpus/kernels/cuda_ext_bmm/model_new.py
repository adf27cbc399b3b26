# corpus: task=bmm family=bmm format=cuda_extension backend=cuda techniques=templates,shared_memory,grid_3d
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        batch, m, k = a.shape
        n = b.shape[2]
        c = torch.empty((batch, m, n), dtype=a.dtype, device=a.device)
        cuda_extension.bmm(a, b, c, batch, m, n, k)
        return c
