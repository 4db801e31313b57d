"""The operators of metalops as Python functions: one module per family, all of them importable from here.

They run on ``mps`` tensors and are ordinary PyTorch operators too (``torch.ops.metalops.gelu_new``), with autograd and
fake kernels, so torch.compile and torch.export take them.
"""

from . import activation, gated, interpolation
from .activation import *  # noqa: F403
from .gated import *  # noqa: F403
from .interpolation import *  # noqa: F403

__all__ = [*activation.__all__, *gated.__all__, *interpolation.__all__]
