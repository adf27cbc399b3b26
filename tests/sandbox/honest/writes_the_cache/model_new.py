# verdict: correct task=cache
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, cache):
        out = torch.empty(cache.shape[:2])
        cuda_extension.scores(x, cache, out, cache.shape[0], cache.shape[1], cache.shape[2])
        return out
