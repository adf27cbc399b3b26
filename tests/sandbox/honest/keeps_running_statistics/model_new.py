# verdict: correct task=batch_norm
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(128)

    def forward(self, x):
        out = torch.empty_like(x)
        norm = self.norm
        cuda_extension.batch_norm(
            x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked, out, x.shape[0], x.shape[1], 1e-5
        )
        return out
