# corpus: task=dequantise family=quantization format=cuda_extension backend=cpp techniques=int8
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, scale):
        y = torch.empty(q.shape)
        cuda_extension.dequantise(q, scale, y, q.shape[0], q.shape[1])
        return y
