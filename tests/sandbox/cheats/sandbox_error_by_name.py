# verdict: runtime_error task=relu policy=mixed kinds=E7 twin=relu
import torch
import torch.nn as nn
class SandboxError(RuntimeError):
    pass


class ModelNew(nn.Module):
    def forward(self, x):
        raise SandboxError('the GPU fell off the bus, lock, retry')
