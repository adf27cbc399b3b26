# corpus: task=var_mean family=statistics format=cuda_extension backend=cpp techniques=multiple_outputs
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        var, mean = torch.empty(x.shape[0]), torch.empty(x.shape[0])
        cuda_extension.var_mean(x, var, mean, x.shape[0], x.shape[1])
        return var, mean
