# corpus: task=quantise family=quantization format=cuda_extension backend=cpp techniques=int8,integer_output
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        q = torch.empty(x.shape, dtype=torch.int8)
        cuda_extension.quantise(x, q, x.shape[0], x.shape[1])
        return q
