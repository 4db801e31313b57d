"""The error for a gradient that a kernel does not have."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# An operator that raises instead of returning, so that torch.compile can trace the backward pass of a model whose user
# never runs it. It stands for the gradient itself: a compiler would remove it if only its shape were used.
_refuse = torch.library.custom_op(
    "metalops_kernel::no_backward",
    lambda kernel, grad_output, shape, dtype: _raise(kernel),
    mutates_args=(),
    schema="(str kernel, Tensor grad_output, SymInt[] shape, ScalarType dtype) -> Tensor",
)
_refuse.register_fake(
    lambda kernel, grad_output, shape, dtype: grad_output.new_empty(shape, dtype=dtype)
)


def no_backward(
    owner: str, grad_output: torch.Tensor, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Raises NotImplementedError that names the owner; while a graph is traced, returns a placeholder gradient of that
    shape and dtype, and raises when the graph runs."""
    return _refuse(owner, grad_output, shape, dtype)


def _raise(owner: str):
    raise NotImplementedError(
        f"{owner} has no backward function, so there are no gradients through it"
    )
