"""torch dtypes and the Metal types of their elements."""

from __future__ import annotations

import torch

# The dtypes of mps tensors. complex64 and complex32 are pairs (real, imaginary), as in torch's own Metal kernels.
METAL_TYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "bfloat",
    torch.bool: "bool",
    torch.int8: "char",
    torch.uint8: "uchar",
    torch.int16: "short",
    torch.uint16: "ushort",
    torch.int32: "int",
    torch.uint32: "uint",
    torch.int64: "long",
    torch.uint64: "ulong",
    torch.complex64: "float2",
    torch.complex32: "half2",
}


def metal_type(owner: str, role: str, dtype: object) -> str:
    """Returns the Metal type of a dtype's elements. Raises TypeError for dtypes that mps tensors cannot have."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{owner}: {role} must be a torch.dtype, but got {dtype!r}")
    try:
        return METAL_TYPES[dtype]
    except KeyError:
        raise TypeError(f"{owner}: {role} is {dtype}, which Metal has no type for") from None
