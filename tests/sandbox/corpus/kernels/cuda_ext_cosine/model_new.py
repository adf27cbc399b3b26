# corpus: task=cosine family=cosine_similarity format=cuda_extension backend=cuda techniques=warp_shuffle,three_sums
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0], dtype=a.dtype, device=a.device)
        cuda_extension.cosine(a, b, y, a.shape[0], a.shape[1])
        return y
