"""Indices among the results of an operator: where several elements have the same value, any of their indices is right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# By name of the operator: the position of its indices among the results.
_WITH_VALUES = {
    **dict.fromkeys(["max", "min", "median", "nanmedian", "kthvalue", "mode", "cummax", "cummin"], 1),
    **dict.fromkeys(["sort", "topk", "_fused_sort"], 1),
    **dict.fromkeys(["argmax", "argmin", "argsort"], 0),
}  # fmt: skip
_OF_WINDOWS = {
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
    "fractional_max_pool2d": 2,
    "fractional_max_pool3d": 3,
}


def is_index(name: str, position: int) -> bool:
    """Returns true if a result of an operator is an index into its first argument."""
    if name in _OF_WINDOWS:
        return position == 1
    return _WITH_VALUES.get(name) == position


def values_at(name: str, x: Tensor, indices: Tensor, arguments: dict[str, Any]) -> Tensor | None:
    """Returns the elements of the first argument that indices are of; None if they are of none.

    arguments: of the call, by name.
    """
    if name in _OF_WINDOWS:
        dims = _OF_WINDOWS[name]
        return _gathered(x.flatten(-dims), -1, indices.flatten(-dims))
    dim = arguments.get("dim", None if name in ("argmax", "argmin") else -1)
    if dim is None:
        return _gathered(x.flatten(), 0, indices.reshape(-1))
    if x.dim() == 0:
        x, indices = x[None], indices[None] if indices.dim() == 0 else indices
    if indices.dim() == x.dim() - 1:
        indices = indices.unsqueeze(dim)
    return _gathered(x, dim, indices)


def _gathered(x: Tensor, dim: int, indices: Tensor) -> Tensor | None:
    if indices.numel() and not (0 <= int(indices.min()) and int(indices.max()) < x.shape[dim]):
        return None
    return x.gather(dim, indices.to(torch.int64))
