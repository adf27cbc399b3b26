# corpus: task=log_softmax family=log_softmax format=cuda_extension backend=cuda techniques=cooperative_groups,online
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cuda_extension.log_softmax(x, y, x.shape[0], x.shape[1])
        return y
