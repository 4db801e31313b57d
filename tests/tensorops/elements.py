"""The types of elements that products of tiles take: what they are called in Metal, how matrices of them are made and laid
out in memory, and the numbers that they stand for, decoded here without any of our own code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

# Codes of fp4 (OCP MX 1.0), the sign apart.
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


@dataclass(frozen=True)
class Element:
    """metal: the name in Metal. pointer: of what memory of it is. bits: of an element. codes: a random matrix of so many
    rows and columns, as codes. values: of codes, float64. pack: codes as memory that the kernel gets, a row after the
    other."""

    metal: str
    pointer: str
    bits: int
    codes: Callable[[torch.Generator, int, int], torch.Tensor]
    values: Callable[[torch.Tensor], torch.Tensor]
    pack: Callable[[torch.Tensor], torch.Tensor]


def _plain(metal: str, dtype: torch.dtype) -> Element:
    def codes(generator, rows, columns):
        if dtype.is_floating_point:
            return torch.randn(rows, columns, generator=generator).to(dtype)
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max + 1, (rows, columns), generator=generator).to(dtype)

    return Element(
        metal, metal, dtype.itemsize * 8, codes, lambda c: c.double(), lambda c: c.contiguous()
    )


def _packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of less than a byte, the first in the lowest bits."""
    in_byte = 8 // bits
    parts = codes.to(torch.uint8).contiguous().reshape(codes.shape[0], -1, in_byte)
    return sum(parts[..., i] << (i * bits) for i in range(in_byte)).to(torch.uint8)


def _integers(metal: str, bits: int, is_signed: bool) -> Element:
    def values(codes):
        numbers = codes.double()
        return numbers - (2**bits) * (numbers >= 2 ** (bits - 1)) if is_signed else numbers

    return Element(
        metal,
        "uchar",
        bits,
        lambda g, rows, columns: torch.randint(0, 2**bits, (rows, columns), generator=g),
        values,
        lambda codes: _packed(codes, bits),
    )


def _fp8(metal: str, dtype: torch.dtype, largest: int) -> Element:
    def codes(generator, rows, columns):
        magnitudes = torch.randint(0, largest + 1, (rows, columns), generator=generator)
        signs = torch.randint(0, 2, (rows, columns), generator=generator)
        return magnitudes + 128 * signs

    return Element(
        metal,
        "uchar",
        8,
        codes,
        lambda c: c.to(torch.uint8).view(dtype).double(),
        lambda c: c.to(torch.uint8).contiguous(),
    )


def _whole(element: Element, one: int, two: int) -> Element:
    """Of the numbers from -2 to 2 only, whose codes are given: their sums are exact where GPUs add with 14 bits."""
    codes = torch.tensor([0, one, two, 128 + one, 128 + two])
    return replace(element, codes=lambda g, *size: codes[torch.randint(0, 5, size, generator=g)])


ELEMENTS = {
    "half": _plain("half", torch.float16),
    "bfloat": _plain("bfloat", torch.bfloat16),
    "float": _plain("float", torch.float32),
    "char": _plain("int8_t", torch.int8),
    "uchar": _plain("uchar", torch.uint8),
    "int": _plain("int", torch.int32),
    "int4": _integers("int4b_format", 4, True),
    "uint4": _integers("uint4b_format", 4, False),
    "int2": _integers("int2b_format", 2, True),
    "uint2": _integers("uint2b_format", 2, False),
    "e2m1": Element(
        "metal_fp4_e2m1_format",
        "uchar",
        4,
        lambda g, rows, columns: torch.randint(0, 16, (rows, columns), generator=g),
        lambda codes: _E2M1[codes % 8] * torch.where(codes >= 8, -1.0, 1.0),
        lambda codes: _packed(codes, 4),
    ),
    "e4m3": _fp8("metal_fp8_e4m3_format", torch.float8_e4m3fn, 0x60),
    "e5m2": _fp8("metal_fp8_e5m2_format", torch.float8_e5m2, 0x48),
}

ELEMENTS["e4m3_whole"] = _whole(ELEMENTS["e4m3"], 0x38, 0x40)
ELEMENTS["e5m2_whole"] = _whole(ELEMENTS["e5m2"], 0x3C, 0x40)

_F = ("half", "bfloat", "float")
# Left, right, destination: what Metal Performance Primitives of macOS 26.5 take, and what 27.0 added.
TRIPLES = [
    *(("half", r, d) for r in ("half", "char", "uchar") for d in ("half", "float")),
    ("half", "float", "float"),
    *((left, "half", d) for left in ("char", "uchar") for d in ("half", "float")),
    *(("float", r, "float") for r in ("half", "float", "char", "uchar")),
    *((left, "float", "float") for left in ("char", "uchar")),
    ("char", "char", "int"),
    ("uchar", "uchar", "int"),
    *(("bfloat", "bfloat", d) for d in ("bfloat", "float")),
    ("bfloat", "float", "float"),
    ("float", "bfloat", "float"),
    *(("bfloat", r, d) for r in ("char", "uchar") for d in ("bfloat", "float")),
    *((left, "bfloat", d) for left in ("char", "uchar") for d in ("bfloat", "float")),
    *((*pair, d) for pair in (("bfloat", "half"), ("half", "bfloat")) for d in _F),
    *(("half", r, d) for r in ("int4", "uint4") for d in ("half", "float")),
    *(("bfloat", r, d) for r in ("int4", "uint4") for d in ("bfloat", "float")),
    ("char", "int4", "int"),
    ("uchar", "uint4", "int"),
]
NEWER_TRIPLES = [
    ("char", "int2", "int"),
    ("uchar", "uint2", "int"),
    *(("half", r, d) for r in ("int2", "uint2") for d in ("half", "float")),
    *(("bfloat", r, d) for r in ("int2", "uint2") for d in ("bfloat", "float")),
    *(("half", r, d) for r in ("e2m1", "e4m3", "e5m2") for d in ("half", "float")),
    *((f, f, d) for f in ("e2m1", "e4m3", "e5m2") for d in ("half", "float")),
]
assert len(TRIPLES) == 47 and len(TRIPLES + NEWER_TRIPLES) == 69
