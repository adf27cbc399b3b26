# corpus: task=mish family=activation format=cuda_extension backend=cpp techniques=full_binding
import cuda_extension
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return cuda_extension.mish(x)
