# corpus: task=avg_pool family=pooling format=cuda_extension backend=cuda techniques=float4,float2
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        n, c, h, w = x.shape
        y = torch.empty((n, c, h // 2, w // 2), dtype=x.dtype, device=x.device)
        cuda_extension.avg_pool(x, y, n * c * (h // 2), w)
        return y
