# corpus: task=max_with_place family=reduction format=cuda_extension backend=cpp techniques=integer_output,multiple_outputs,tuple_output
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = torch.empty(x.shape[0]), torch.empty(x.shape[0], dtype=torch.int64)
        cuda_extension.row_max(x, values, places, x.shape[0], x.shape[1])
        return values, places
