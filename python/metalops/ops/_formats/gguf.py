"""Dequantisation of GGUF blocks in operators of torch: ggml-quants.c's dequantize_row_*, as in
kernels/quantized/gguf_blocks.h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_TWICE_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _half(blocks: Tensor, at: int) -> Tensor:
    """Returns the half at offset `at` of each block, ``(blocks, 1)``."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(codes: Tensor) -> Tensor:
    """Unpacks ``(..., 16)`` bytes to ``(..., 32)`` quants: the lower nibbles come first."""
    return torch.cat([codes & 15, codes >> 4], -1).int()


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    bits = blocks[:, at : at + 4, None] >> torch.arange(8, dtype=torch.uint8, device=blocks.device)
    return (bits & 1).flatten(1).int() << 4


def _of_table(table: tuple[int, ...], codes: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.float32, device=codes.device)[codes]


def _q4_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_nibbles(b[:, 2:]) - 8)


def _q4_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _nibbles(b[:, 4:]) + _half(b, 2)


def _q5_0(b: Tensor) -> Tensor:
    return _half(b, 0) * ((_nibbles(b[:, 6:]) | _fifth_bits(b, 2)) - 16)


def _q5_1(b: Tensor) -> Tensor:
    return _half(b, 0) * (_nibbles(b[:, 8:]) | _fifth_bits(b, 4)) + _half(b, 2)


def _q8_0(b: Tensor) -> Tensor:
    return _half(b, 0) * b[:, 2:].contiguous().view(torch.int8)


def _pairs_of_bits(codes: Tensor) -> Tensor:
    """Unpacks 64 bytes to 256 quants of two bits: in each 32 bytes, the lowest bits first."""
    halves = codes.reshape(-1, 2, 1, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=codes.device)[:, None]
    return (halves >> shifts & 3).flatten(1).int()


def _q2_k(b: Tensor) -> Tensor:
    scales = b[:, :16]
    d = _half(b, 80) * (scales & 15)
    m = _half(b, 82) * (scales >> 4)
    codes = _pairs_of_bits(b[:, 16:80])
    return d.repeat_interleave(16, 1) * codes - m.repeat_interleave(16, 1)


def _q3_k(b: Tensor) -> Tensor:
    packed = b[:, 96:108].int()
    low = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], 1)
    shifts = torch.arange(0, 8, 2, device=b.device)[:, None]
    high = (packed[:, None, 8:] >> shifts & 3).flatten(1)
    d = _half(b, 108) * ((low | high << 4) - 32)
    places = torch.arange(8, dtype=torch.uint8, device=b.device)[:, None]
    third = (b[:, None, :32] >> places & 1).flatten(1).int()
    return d.repeat_interleave(16, 1) * ((_pairs_of_bits(b[:, 32:96]) | third << 2) - 4)


def _scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpacks 12 bytes to eight scales and eight minima of six bits each."""
    a, b, c = packed.int().unflatten(1, (3, 4)).unbind(1)
    scales = torch.cat([a & 63, (c & 15) | (a >> 6) << 4], 1)
    minima = torch.cat([b & 63, (c >> 4) | (b >> 6) << 4], 1)
    return scales, minima


def _halves(codes: Tensor) -> Tensor:
    """Unpacks 128 bytes to 256 quants: in each 32 bytes, the lower nibbles first."""
    parts = codes.reshape(-1, 4, 1, 32)
    return torch.cat([parts & 15, parts >> 4], 2).flatten(1).int()


def _with_minima(b: Tensor, codes: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(b[:, 4:16])
    d, m = _half(b, 0) * scales, _half(b, 2) * minima
    return d.repeat_interleave(32, 1) * codes - m.repeat_interleave(32, 1)


def _q4_k(b: Tensor) -> Tensor:
    return _with_minima(b, _halves(b[:, 16:]))


def _q5_k(b: Tensor) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=b.device)[:, None]
    fifth = (b[:, None, 16:48] >> places & 1).flatten(1).int()
    return _with_minima(b, _halves(b[:, 48:]) | fifth << 4)


def _q6_k(b: Tensor) -> Tensor:
    low = b[:, :128].reshape(-1, 2, 64)
    low = torch.cat([low & 15, low >> 4], 2).flatten(1).int()
    codes = low | _pairs_of_bits(b[:, 128:192]) << 4
    d = _half(b, 208) * b[:, 192:208].contiguous().view(torch.int8)
    return d.repeat_interleave(16, 1) * (codes - 32)


def _iq4_nl(b: Tensor) -> Tensor:
    return _half(b, 0) * _of_table(_NON_LINEAR, _nibbles(b[:, 2:]))


def _iq4_xs(b: Tensor) -> Tensor:
    lows = torch.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], 2).flatten(1).int()
    highs = b[:, 2:3].int() | b[:, 3:4].int() << 8
    highs = highs >> torch.arange(0, 16, 2, device=b.device) & 3
    d = _half(b, 0) * ((lows | highs << 4) - 32)
    codes = _nibbles(b[:, 8:].reshape(-1, 8, 16)).flatten(1)
    return d.repeat_interleave(32, 1) * _of_table(_NON_LINEAR, codes)


def _mxfp4(b: Tensor) -> Tensor:
    exponent = b[:, :1].int()
    # Half of the power of two, since the table is twice e2m1.
    bits = torch.where(exponent < 2, 0x00200000 << exponent.clamp(max=1), (exponent - 1) << 23)
    return bits.view(torch.float32) * _of_table(_TWICE_E2M1, _nibbles(b[:, 1:]))


@dataclass(frozen=True)
class Type:
    """A ggml type. number: of ggml. size, bytes: of a block. values: dequantises blocks ``(blocks, bytes)`` to
    ``(blocks, size)`` in float32."""

    number: int
    size: int
    bytes: int
    values: Callable[[Tensor], Tensor]


TYPES = {
    "Q4_0": Type(2, 32, 18, _q4_0),
    "Q4_1": Type(3, 32, 20, _q4_1),
    "Q5_0": Type(6, 32, 22, _q5_0),
    "Q5_1": Type(7, 32, 24, _q5_1),
    "Q8_0": Type(8, 32, 34, _q8_0),
    "Q2_K": Type(10, 256, 84, _q2_k),
    "Q3_K": Type(11, 256, 110, _q3_k),
    "Q4_K": Type(12, 256, 144, _q4_k),
    "Q5_K": Type(13, 256, 176, _q5_k),
    "Q6_K": Type(14, 256, 210, _q6_k),
    "IQ4_NL": Type(20, 32, 18, _iq4_nl),
    "IQ4_XS": Type(23, 256, 136, _iq4_xs),
    "MXFP4": Type(39, 32, 17, _mxfp4),
}
BY_NUMBER = {known.number: known for known in TYPES.values()}


def type_of(qtype: str | int) -> Type:
    """Returns the type of a name or number. Raises ValueError for unknown ones."""
    known = TYPES.get(qtype.upper()) if isinstance(qtype, str) else BY_NUMBER.get(int(qtype))
    if known is None:
        names = ", ".join(f"{name!r} ({about.number})" for name, about in TYPES.items())
        raise ValueError(f"GGUF: qtype must be one of {names}, but is {qtype!r}")
    return known


def checked(name: str, data: Tensor, qtype: str | int, dimensions: int | None = None) -> Type:
    """Returns the type. Raises ValueError for data that does not consist of whole blocks."""
    known = type_of(qtype)
    if data.dtype != torch.uint8 or data.dim() == 0:
        raise ValueError(
            f"{name}: data must be bytes of at least one dimension, but is {data.dtype} of sizes {list(data.shape)}"
        )
    if dimensions is not None and data.dim() != dimensions:
        raise ValueError(
            f"{name}: data must have {dimensions} dimensions, but has sizes {list(data.shape)}"
        )
    if data.shape[-1] % known.bytes != 0:
        raise ValueError(
            f"{name}: rows must be blocks of {known.bytes} bytes, but data has sizes {list(data.shape)}"
        )
    return known


def dequantized(data: Tensor, known: Type) -> Tensor:
    """Returns the weights of data ``(..., bytes)`` in float32."""
    count = data.shape[-1] // known.bytes
    if data.numel() == 0:
        return data.new_empty([*data.shape[:-1], count * known.size], dtype=torch.float32)
    values = known.values(data.reshape(-1, known.bytes))
    return values.reshape(*data.shape[:-1], count * known.size)
