# corpus: task=leaky_relu_inplace family=activation format=cuda_extension backend=cuda techniques=in_place,float4,grid_stride
import cuda_extension
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        cuda_extension.leaky_relu_(x, x.numel(), 0.1)
        return x
