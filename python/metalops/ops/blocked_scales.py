"""Scales in the blocked layout of NVIDIA's tensor cores, as :func:`torch.nn.functional.scaled_mm` takes them with
``SwizzleType.SWIZZLE_32_4_4`` and as torchao's ``to_blocked`` makes them. Made of views and copies of torch on every
device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_blocked(scale: Tensor) -> Tensor:
    """Converts scales to the blocked layout. scale: ``(rows, columns)`` of any dtype. Returns one dimension: rows
    padded to a multiple of 128 and columns to one of 4 with zeros, in blocks of 128 x 4 by row, and in each of them row
    ``32 i + j`` at position ``j`` of 32, part ``i`` of 4.

    Raises ValueError for another number of dimensions.
    """
    if scale.dim() != 2:
        raise ValueError(
            f"to_blocked: scale must have 2 dimensions, but has sizes {list(scale.shape)}"
        )
    rows, columns = scale.shape
    codes = scale.view(torch.uint8) if scale.element_size() == 1 else scale
    padded = torch.nn.functional.pad(codes, (0, -columns % 4, 0, -rows % 128))
    blocks = padded.unflatten(0, (-1 if rows else 0, 4, 32)).unflatten(3, (-1 if columns else 0, 4))
    return blocks.permute(0, 3, 2, 1, 4).reshape(-1).view(scale.dtype)


def from_blocked(scale: Tensor, rows: int, columns: int) -> Tensor:
    """Converts back: returns the scales ``(rows, columns)`` from :func:`to_blocked`'s layout. Raises ValueError for
    another number of elements."""
    down, across = -(-rows // 128), -(-columns // 4)
    if scale.numel() != down * across * 512:
        raise ValueError(
            f"from_blocked: {rows} times {columns} scales are in {down * across * 512} elements, but scale has {scale.numel()}"
        )
    codes = scale.view(torch.uint8) if scale.element_size() == 1 else scale
    blocks = codes.reshape(down, across, 32, 4, 4).permute(0, 3, 2, 1, 4)
    whole = blocks.reshape(down * 128, across * 4)[:rows, :columns]
    return whole.contiguous().view(scale.dtype)


OPERATORS = (to_blocked, from_blocked)
