# verdict: format_error task=relu kinds=none twin=relu
import torch.nn as nn


class ModelNew(nn.Module):
    pass
