# corpus: task=gru_cell family=recurrent format=cuda_extension backend=cpp techniques=fusion
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(64, 64)

    def forward(self, x, h):
        c, y = self.cell, torch.empty_like(h)
        cuda_extension.gru(x, h, c.weight_ih, c.weight_hh, c.bias_ih, c.bias_hh, y, h.shape[0], h.shape[1])
        return y
