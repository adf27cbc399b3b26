# verdict: format_error task=relu kinds=none twin=relu
import torch
