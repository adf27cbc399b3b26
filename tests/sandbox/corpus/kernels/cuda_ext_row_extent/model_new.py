# corpus: task=row_extent family=reduce_last format=cuda_extension backend=cuda techniques=multiple_outputs,cp_async,double_buffer
import cuda_extension
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        low, high, total = x.new_empty(x.shape[0]), x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        cuda_extension.row_extent(x, low, high, total, x.shape[0], x.shape[1])
        return low, high, total
