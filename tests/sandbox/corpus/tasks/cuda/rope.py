import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, cos, sin):
        half = x.shape[-1] // 2
        rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * cos + rotated * sin


def get_inputs():
    return [torch.randn(4, 16, 512, 64), torch.randn(512, 64), torch.randn(512, 64)]


def get_init_inputs():
    return []
