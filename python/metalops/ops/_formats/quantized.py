"""Formats of quantised weights: modes, packing and scales, in operators of torch.

Quants of ``bits`` bits are packed without gaps along a row, each from its lowest bit on, as in MLX and torchao. Modes
nf4 and fp4 have bitsandbytes' packing: the first of two in the higher nibble of a byte. The kernels of
kernels/quantized/quantized.metal compute the same, to the last bit in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._define.elsewhere import check_devices

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_BYTES = (torch.uint8, torch.int32, torch.uint32)


@dataclass(frozen=True)
class Mode:
    """A quantisation mode. bits, groups: the supported ones; the first are the defaults. scale: dtype of scales, None
    for that of weights. biases: true if there are biases. short: true if the last group of a row may be shorter."""

    bits: tuple[int, ...]
    groups: tuple[int, ...]
    scale: torch.dtype | None = None
    biases: bool = False
    short: bool = False


_BLOCKS = (64, 32, 128, 256, 512, 1024, 2048, 4096)
MODES = {
    "affine": Mode((4, 1, 2, 3, 5, 6, 7, 8), (64, 32, 128, 256), biases=True, short=True),
    "mxfp4": Mode((4,), (32,), torch.uint8),
    "mxfp8": Mode((8,), (32,), torch.uint8),
    "nvfp4": Mode((4,), (16,), torch.uint8),
    "nf4": Mode((4,), _BLOCKS, torch.float32),
    "fp4": Mode((4,), _BLOCKS, torch.float32),
}
_NARROW = (torch.float8_e8m0fnu, torch.float8_e4m3fn)  # scales of modes whose scales are bytes

_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_NF4_THRESHOLDS = (
    -0.8480964004993439,
    -0.6106329262256622,
    -0.4599952697753906,
    -0.33967943489551544,
    -0.23460740596055984,
    -0.13791173323988914,
    -0.045525018125772476,
    0.03979014977812767,
    0.1202552542090416,  # the float nearest to bitsandbytes' 0.1202552504837513f
    0.2035212516784668,
    0.2920137718319893,
    0.3893125355243683,
    0.5016634166240692,
    0.6427869200706482,
    0.8614784181118011,
)
_FP4 = (0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_FP4_THRESHOLDS = (0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333)
_FP4_CODES = (0, 1, 6, 7, 4, 5, 2, 3)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


# ---- arguments -----------------------------------------------------------------------------------


def usual(mode: str, bits: int | None, group_size: int | None) -> tuple[int, int]:
    """Returns bits and group_size, by default those of the mode. Raises ValueError for others than it supports."""
    if mode not in MODES:
        known = ", ".join(map(repr, MODES))
        raise ValueError(f"quantized weights: mode must be one of {known}, but is {mode!r}")
    about = MODES[mode]
    bits = about.bits[0] if bits is None else bits
    group_size = about.groups[0] if group_size is None else group_size
    if bits not in about.bits:
        raise ValueError(
            f"quantized weights: mode {mode!r} has bits {sorted(about.bits)}, but bits is {bits}"
        )
    if group_size not in about.groups:
        raise ValueError(
            f"quantized weights: mode {mode!r} has groups of {sorted(about.groups)}, but group_size is {group_size}"
        )
    return bits, group_size


def check_columns(name: str, columns: int, group_size: int, mode: str) -> None:
    multiple = 8 if MODES[mode].short else group_size
    if columns % multiple != 0:
        raise ValueError(
            f"{name}: rows of weights in mode {mode!r} must have a multiple of {multiple} elements, but have {columns}"
        )


def as_bytes(name: str, argument: str, packed: Tensor, dtypes=_BYTES) -> Tensor:
    """Returns the same bytes as uint8."""
    if packed.dtype not in dtypes:
        known = ", ".join(map(str, dtypes))
        raise ValueError(f"{name}: {argument} must be one of {known}, but is {packed.dtype}")
    if packed.dtype == torch.uint8:
        return packed
    return (packed if packed.stride(-1) == 1 else packed.contiguous()).view(torch.uint8)


@dataclass(frozen=True)
class Packed:
    """Quantised weights that were checked."""

    codes: Tensor
    scales: Tensor
    biases: Tensor | None
    global_scale: Tensor | None
    bits: int
    group_size: int
    mode: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * 8 // self.bits)

    def of_dtype(self, dtype: torch.dtype) -> Packed:
        """Returns the weights with scales and biases of that dtype, if scales have the weights' dtype."""
        if MODES[self.mode].scale is not None or self.scales.dtype == dtype:
            return self
        return Packed(
            self.codes,
            self.scales.to(dtype),
            self.biases.to(dtype),
            self.global_scale,
            self.bits,
            self.group_size,
            self.mode,
        )

    def map(self, function) -> Packed:
        """Returns the weights with function applied to codes, scales and biases."""
        biases = None if self.biases is None else function(self.biases)
        return Packed(
            function(self.codes),
            function(self.scales),
            biases,
            self.global_scale,
            self.bits,
            self.group_size,
            self.mode,
        )


def checked(
    name: str,
    packed: Tensor,
    scales: Tensor,
    biases: Tensor | None,
    global_scale: Tensor | None,
    bits: int | None,
    group_size: int | None,
    mode: str,
) -> Packed:
    """Returns the checked weights. Raises ValueError for weights that no quantize() returns."""
    bits, group_size = usual(mode, bits, group_size)
    about = MODES[mode]
    if packed.dim() < 2:
        raise ValueError(
            f"{name}: packed must have at least 2 dimensions, but has sizes {list(packed.shape)}"
        )
    codes = as_bytes(name, "packed", packed)
    if codes.shape[-1] % bits != 0:
        raise ValueError(
            f"{name}: packed must have rows of a multiple of {bits} bytes for {bits} bits, but has sizes {list(codes.shape)} in bytes"
        )
    columns = codes.shape[-1] // bits * 8
    check_columns(name, columns, group_size, mode)
    if about.scale == torch.uint8:
        scales = scales.view(torch.uint8) if scales.dtype in _NARROW else scales
    expected = [*codes.shape[:-1], -(-columns // group_size)]
    if about.biases and biases is None:
        raise ValueError(f"{name}: mode {mode!r} needs biases")
    if not about.biases and biases is not None:
        raise ValueError(f"{name}: mode {mode!r} has no biases, but biases were given")
    if global_scale is not None:
        check_global(name, global_scale, mode)
    dtypes = DTYPES if about.scale is None else (about.scale,)
    for argument, tensor in (("scales", scales), ("biases", biases)):
        if tensor is None:
            continue
        if list(tensor.shape) != expected:
            raise ValueError(
                f"{name}: {argument} must have sizes {expected}, but have {list(tensor.shape)}"
            )
        if tensor.dtype not in dtypes or tensor.dtype != scales.dtype:
            raise ValueError(
                f"{name}: {argument} must have dtype {' or '.join(map(str, dtypes))}, as scales, but have {tensor.dtype}"
            )
    check_devices(packed=packed, scales=scales, biases=biases, global_scale=global_scale)
    return Packed(codes, scales, biases, global_scale, bits, group_size, mode)


def check_global(name: str, global_scale: Tensor, mode: str) -> None:
    if mode != "nvfp4":
        raise ValueError(f"{name}: only mode 'nvfp4' has a global_scale, not {mode!r}")
    if global_scale.numel() != 1 or global_scale.dtype != torch.float32:
        raise ValueError(
            f"{name}: global_scale must be one float32, but is {global_scale.dtype} of sizes {list(global_scale.shape)}"
        )


# ---- codes ---------------------------------------------------------------------------------------


def is_high_first(mode: str) -> bool:
    return mode in ("nf4", "fp4")


def pack(codes: Tensor, bits: int, high_first: bool = False) -> Tensor:
    """Packs quants. codes: ``(..., K)`` int64. Returns ``(..., K bits / 8)`` uint8."""
    eight = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 8, 8)
    if high_first:
        eight = eight.unflatten(-1, (4, 2)).flip(-1).flatten(-2)
    # The eighth code of 8 bits would be the sign of the sum: it is only or-ed.
    places = torch.arange(8, device=codes.device) * bits
    shifted = eight << places
    word = shifted[..., 0]
    for i in range(1, 8):
        word = word | shifted[..., i]
    of_bytes = torch.arange(bits, device=codes.device) * 8
    return ((word[..., None] >> of_bytes) & 255).to(torch.uint8).flatten(-2)


def unpack(packed: Tensor, bits: int, high_first: bool = False) -> Tensor:
    """Returns the quants, ``(..., K)`` int64."""
    groups = packed.reshape(*packed.shape[:-1], packed.shape[-1] // bits, bits).long()
    word = groups[..., 0]
    for i in range(1, bits):
        word = word | (groups[..., i] << (8 * i))
    places = torch.arange(8, device=packed.device) * bits
    eight = (word[..., None] >> places) & ((1 << bits) - 1)
    if high_first:
        eight = eight.unflatten(-1, (4, 2)).flip(-1).flatten(-2)
    return eight.flatten(-2)


def values_of(codes: Tensor, mode: str) -> Tensor:
    """Returns the values of quants before scaling, in float32."""
    if mode == "affine":
        return codes.float()
    if mode == "mxfp8":
        return codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
    if mode == "int8":
        return codes.to(torch.uint8).view(torch.int8).float()
    table = {"nf4": _NF4, "fp4": (*_FP4, *(-x for x in _FP4))}.get(
        mode, (*_E2M1, *(-x for x in _E2M1))
    )
    return torch.tensor(table, device=codes.device)[codes]


def scale_values(scales: Tensor, mode: str) -> Tensor:
    """Returns the scales in float32."""
    if mode in ("mxfp4", "mxfp8"):
        exponent = scales.to(torch.int32)
        bits = torch.where(exponent == 0, 0x00400000, exponent << 23)
        return torch.where(exponent == 255, torch.nan, bits.view(torch.float32))
    if mode == "nvfp4":
        return scales.view(torch.float8_e4m3fn).float()
    return scales.float()


def _global_factor(global_scale: Tensor) -> Tensor:
    """Returns the factor of all scales."""
    return global_scale.reshape(()) / (6 * 448)


def of_each_element(of_group: Tensor, group_size: int, columns: int) -> Tensor:
    if group_size == 0:  # one for all
        return of_group.expand(*of_group.shape[:-1], columns)
    return of_group.repeat_interleave(group_size, -1)[..., :columns]


def dequantized(p: Packed) -> Tensor:
    """Returns the weights in float32, ``(..., K)``."""
    codes = unpack(p.codes, p.bits, is_high_first(p.mode))
    scales = scale_values(p.scales, p.mode)
    if p.global_scale is not None:
        scales = scales * _global_factor(p.global_scale)
    scales = of_each_element(scales, p.group_size, codes.shape[-1])
    values = values_of(codes, p.mode)
    if p.biases is None:
        return values * scales
    # Rounded once, as in the kernels.
    biases = of_each_element(p.biases.float(), p.group_size, codes.shape[-1])
    return (values.double() * scales.double() + biases.double()).float()


# ---- quantising ----------------------------------------------------------------------------------


def _e2m1_codes(x: Tensor) -> Tensor:
    size = x.abs()
    # Ties go to even codes.
    codes = sum(
        (size >= threshold if i % 2 == 1 else size > threshold).long()
        for i, threshold in enumerate(_E2M1_THRESHOLDS)
    )
    return torch.where(x.isnan(), 7, codes) | (torch.signbit(x).long() << 3)


def _e4m3_codes(x: Tensor) -> Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).long()


def _codes(x: Tensor, mode: str) -> Tensor:
    if mode in ("mxfp4", "nvfp4"):
        return _e2m1_codes(x)
    if mode == "mxfp8":
        return _e4m3_codes(x)
    if mode == "nf4":
        return torch.bucketize(x, torch.tensor(_NF4_THRESHOLDS, device=x.device))
    place = torch.bucketize(x.abs(), torch.tensor(_FP4_THRESHOLDS, device=x.device))
    return torch.tensor(_FP4_CODES, device=x.device)[place] | ((x < 0).long() << 3)


def quantized(
    weight: Tensor, global_scale: Tensor | None, bits: int, group_size: int, mode: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the packed quants in bytes, scales and biases."""
    columns = weight.shape[-1]
    groups = -(-columns // group_size)
    w = weight.float()
    missing = groups * group_size - columns
    if missing:  # repeating the last element changes no extremes
        w = torch.cat([w, w[..., -1:].expand(*w.shape[:-1], missing)], -1)
    w = w.unflatten(-1, (groups, group_size))
    low, high = (x.unsqueeze(-1) for x in torch.aminmax(w, dim=-1))
    if mode == "affine":
        most = (1 << bits) - 1
        is_low = low.abs() > high.abs()
        edge = torch.where(is_low, low, high)
        scale = ((high - low) / most).clamp(min=1e-7)
        scale = torch.where(is_low, scale, -scale)
        steps = (edge / scale).round()
        if bits == 1:  # the codes are both extremes
            scale, bias = scale.abs(), low
        else:
            scale = torch.where(steps != 0, edge / steps, scale)
            bias = torch.where(steps != 0, edge, 0)
        codes = ((w - bias) / scale).round().clamp(0, most).long()
        scales, biases = (x.squeeze(-1).to(weight.dtype) for x in (scale, bias))
    else:
        largest = torch.maximum(low.abs(), high.abs())
        biases = None
        if mode in ("nf4", "fp4"):
            scale, scales = largest, largest.squeeze(-1)
        else:
            factor = 1.0 if global_scale is None else _global_factor(global_scale)
            ratio = largest / (448.0 if mode == "mxfp8" else 6.0) / factor
            if mode == "nvfp4":
                scales = _e4m3_codes(ratio)
            else:
                pattern = ratio.view(torch.int32).long()
                above = (pattern & 0x7FFFFF) != 0
                scales = torch.where(ratio == 0, 127, ((pattern >> 23) + above).clamp(max=254))
            scales = scales.squeeze(-1).to(torch.uint8)
            scale = scale_values(scales, mode).unsqueeze(-1) * factor
        codes = _codes(torch.where(scale == 0, 0, w / scale), mode)
    codes = codes.flatten(-2)[..., :columns]
    return pack(codes, bits, is_high_first(mode)), scales, biases
