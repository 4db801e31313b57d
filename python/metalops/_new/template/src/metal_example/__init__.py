"""PyTorch operators with Metal kernels.

`kernels/example.metal` has the kernels, `csrc/example.mm` launches them, and this file has the Python functions, the gradients, and
the fake kernels that torch.compile and torch.export need.
"""

import os

import metalops  # noqa: F401  (brings up the mps device on Linux)
import torch

torch.ops.load_library(os.path.join(os.path.dirname(__file__), "_kernels.so"))


def softsign(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + |x|) of a float32, float16 or bfloat16 tensor of any shape. Differentiable."""
    return torch.ops.metal_example.softsign(x)


def squared_difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(a - b)**2 of two tensors that broadcast together."""
    return torch.ops.metal_example.squared_difference(a, b)


def row_max_abs(matrix: torch.Tensor) -> torch.Tensor:
    """The largest magnitude in each row of a matrix [n, m], as [n]; 0 for rows without elements."""
    return torch.ops.metal_example.row_max_abs(matrix)


def _save_input(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _softsign_gradient(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient / (1 + x.abs()) ** 2


torch.library.register_autograd(
    "metal_example::softsign", _softsign_gradient, setup_context=_save_input
)


@torch.library.register_fake("metal_example::softsign")
def _(x):
    return torch.empty_like(x)


@torch.library.register_fake("metal_example::squared_difference")
def _(a, b):
    return a + b


@torch.library.register_fake("metal_example::row_max_abs")
def _(matrix):
    return matrix.new_empty(matrix.shape[0])
