"""Dtype promotion, shared by references."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def floating(x: Tensor, *partners: Tensor) -> Tensor:
    """Returns ``x`` in the floating-point dtype to which it is promoted together with its partners."""
    dtype = torch.result_type(x, partners[0]) if partners else x.dtype
    return x.to(dtype if dtype.is_floating_point else torch.get_default_dtype())


def _common_dtype(*operands: Tensor) -> torch.dtype:
    """Returns the dtype to which all operands are promoted at once, as in torch.where: in pairs, ((a, b), c) may differ
    from (a, (b, c)) if there are operands without dimensions."""
    with_dimensions = [x.dtype for x in operands if x.dim()]
    without = [x.dtype for x in operands if not x.dim()]
    if not with_dimensions or not without:
        return functools.reduce(torch.promote_types, with_dimensions or without)
    return torch.result_type(
        torch.empty(0, dtype=functools.reduce(torch.promote_types, with_dimensions)),
        torch.empty((), dtype=functools.reduce(torch.promote_types, without)),
    )


def promoted(*operands: Tensor) -> list[Tensor]:
    """Returns the operands in their common dtype."""
    dtype = _common_dtype(*operands)
    return [x.to(dtype) for x in operands]


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the two halves of the last dimension."""
    d = x.shape[-1] // 2
    return x[..., :d], x[..., d:]
