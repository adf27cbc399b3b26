# verdict: incorrect|runtime_error task=softmax backend=cuda kinds=C2 twin=shared_memory
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cuda_extension.softmax(x, out, x.shape[0], x.shape[1])
        return out
