# corpus: task=upsample_nearest family=resampling format=cuda_extension backend=cpp techniques=rows
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], x.shape[1], 2 * x.shape[2], 2 * x.shape[3])
        cuda_extension.up(x, y, x.numel() // x.shape[3], x.shape[3])
        return y
