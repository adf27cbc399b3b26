# corpus: task=embedding_bag family=embedding format=cuda_extension backend=cpp techniques=gather,fusion
import cuda_extension
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 64)

    def forward(self, tokens):
        y = torch.empty(tokens.shape[0], 64)
        cuda_extension.bag(tokens, self.table.weight, y, tokens.shape[0], tokens.shape[1], 64)
        return y
