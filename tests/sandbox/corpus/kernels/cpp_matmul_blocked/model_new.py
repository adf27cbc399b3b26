# corpus: task=matmul family=matmul format=cuda_extension backend=cpp techniques=blocked_gemm
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        cuda_extension.matmul(a, b, c, a.shape[0], b.shape[1], a.shape[1])
        return c
