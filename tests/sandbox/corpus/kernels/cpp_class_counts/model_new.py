# corpus: task=class_counts family=histogram format=cuda_extension backend=cpp techniques=integer_output
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, labels):
        y = torch.empty(labels.shape[0], 32, dtype=torch.int64)
        cuda_extension.count(labels, y, labels.shape[0], labels.shape[1])
        return y
