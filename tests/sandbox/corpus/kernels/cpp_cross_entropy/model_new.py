# corpus: task=cross_entropy family=loss format=cuda_extension backend=cpp techniques=scalar_output,integer_input
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, target):
        loss = torch.empty(())
        cuda_extension.cross_entropy(x, target, loss, x.shape[0], x.shape[1])
        return loss
