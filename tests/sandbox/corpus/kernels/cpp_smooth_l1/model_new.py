# corpus: task=smooth_l1 family=loss format=cuda_extension backend=cpp techniques=openmp_reduction,scalar_output
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        loss = torch.empty(())
        cuda_extension.smooth_l1(a, b, loss, a.numel())
        return loss
