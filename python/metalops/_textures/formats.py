"""Pixel formats: how the components of a texel are stored, and in tensors of which dtypes.

The names are those of MTLPixelFormat in lower case.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# msl::abi::TexelEncoding, in order.
_ENCODINGS = (
    "unorm8 snorm8 srgb8 uint8 sint8 unorm16 snorm16 uint16 sint16 half uint32 sint32 float b5g6r5 a1bgr5 abgr4 bgr5a1"
    " rgb10a2 bgr10a2 rgb10a2uint rg11b10float rgb9e5float"
).split()
_RGBA, _BGRA, _ALPHA = range(3)  # msl::abi::TexelOrder
WRITE, READ_WRITE = 1, 2  # msl::abi::kUsageWrite, kUsageReadWrite

_INTEGERS = {
    8: {torch.uint8, torch.int8},
    16: {torch.uint16, torch.int16},
    32: {torch.uint32, torch.int32},
}
_NUMBERS = {"r": 1, "rg": 2, "rgba": 4}


@dataclass(frozen=True)
class Format:
    """A pixel format. per_texel: the elements of a tensor that make a texel. dtypes: of these tensors. pixel_format: the
    value of MTLPixelFormat."""

    name: str
    encoding: int
    channels: int
    order: int
    bytes: int
    usage: int
    per_texel: int
    dtypes: frozenset[torch.dtype]
    pixel_format: int

    @property
    def is_depth(self) -> bool:
        return self.name.startswith("depth")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of a new tensor with such texels: unsigned if both are possible, except for signed components."""
        is_signed = self.component == 1 or "snorm" in self.name
        return sorted(self.dtypes, key=lambda dtype: dtype.is_signed is not is_signed)[0]

    @property
    def component(self) -> int:
        """The number of the msl::abi::TextureComponent that kernels have for it: float, int or uint."""
        return 2 if self.name.endswith("uint") else int(self.name.endswith("sint"))


def _formats() -> dict[str, Format]:
    found = {}

    def add(name, value, encoding, channels, dtypes, per_texel, size, order=_RGBA, usage=WRITE):
        found[name] = Format(
            name,
            _ENCODINGS.index(encoding),
            channels,
            order,
            size,
            usage,
            per_texel,
            frozenset(dtypes),
            value,
        )

    # Formats of one to four equal components: the kinds of component by size, and the values of MTLPixelFormat.
    kinds = {
        "8unorm": ("unorm8", _INTEGERS[8], 1, (10, 30, 70)),
        "8unorm_srgb": ("srgb8", _INTEGERS[8], 1, (11, 31, 71)),
        "8snorm": ("snorm8", _INTEGERS[8], 1, (12, 32, 72)),
        "8uint": ("uint8", _INTEGERS[8], 1, (13, 33, 73)),
        "8sint": ("sint8", _INTEGERS[8], 1, (14, 34, 74)),
        "16unorm": ("unorm16", _INTEGERS[16], 2, (20, 60, 110)),
        "16snorm": ("snorm16", _INTEGERS[16], 2, (22, 62, 112)),
        "16uint": ("uint16", _INTEGERS[16], 2, (23, 63, 113)),
        "16sint": ("sint16", _INTEGERS[16], 2, (24, 64, 114)),
        "16float": ("half", {torch.float16}, 2, (25, 65, 115)),
        "32uint": ("uint32", _INTEGERS[32], 4, (53, 103, 123)),
        "32sint": ("sint32", _INTEGERS[32], 4, (54, 104, 124)),
        "32float": ("float", {torch.float32}, 4, (55, 105, 125)),
    }
    # Formats that access::read_write has on Apple's GPUs (texture tier 2).
    tier_2 = {
        "8unorm",
        "8uint",
        "8sint",
        "16uint",
        "16sint",
        "16float",
        "32uint",
        "32sint",
        "32float",
    }
    for kind, (encoding, dtypes, size, values) in kinds.items():
        for (letters, channels), value in zip(_NUMBERS.items(), values, strict=True):
            is_read_write = kind in tier_2 and channels != 2
            usage = WRITE | (READ_WRITE if is_read_write else 0)
            add(
                letters + kind,
                value,
                encoding,
                channels,
                dtypes,
                channels,
                size * channels,
                usage=usage,
            )
    add("a8unorm", 1, "unorm8", 1, _INTEGERS[8], 1, 1, _ALPHA)
    add("bgra8unorm", 80, "unorm8", 4, _INTEGERS[8], 4, 4, _BGRA)
    add("bgra8unorm_srgb", 81, "srgb8", 4, _INTEGERS[8], 4, 4, _BGRA)
    add("b5g6r5unorm", 40, "b5g6r5", 3, _INTEGERS[16], 1, 2)
    add("a1bgr5unorm", 41, "a1bgr5", 4, _INTEGERS[16], 1, 2)
    add("abgr4unorm", 42, "abgr4", 4, _INTEGERS[16], 1, 2)
    add("bgr5a1unorm", 43, "bgr5a1", 4, _INTEGERS[16], 1, 2)
    add("rgb10a2unorm", 90, "rgb10a2", 4, _INTEGERS[32], 1, 4)
    add("rgb10a2uint", 91, "rgb10a2uint", 4, _INTEGERS[32], 1, 4)
    add("rg11b10float", 92, "rg11b10float", 3, _INTEGERS[32], 1, 4)
    add("rgb9e5float", 93, "rgb9e5float", 3, _INTEGERS[32], 1, 4)
    add("bgr10a2unorm", 94, "bgr10a2", 4, _INTEGERS[32], 1, 4)
    add("depth16unorm", 250, "unorm16", 1, _INTEGERS[16], 1, 2, usage=0)
    add("depth32float", 252, "float", 1, {torch.float32}, 1, 4, usage=0)
    return found


FORMATS = _formats()

# The formats of tensors that name none: their numbers as they are.
_BY_DTYPE = {
    torch.float32: "32float",
    torch.float16: "16float",
    torch.uint8: "8uint",
    torch.int8: "8sint",
    torch.uint16: "16uint",
    torch.int16: "16sint",
    torch.uint32: "32uint",
    torch.int32: "32sint",
}


def format_named(name: str) -> Format:
    """Raises ValueError for an unknown name."""
    found = FORMATS.get(name.lower())
    if found is None:
        raise ValueError(f"unknown pixel format {name!r}; there are {', '.join(sorted(FORMATS))}")
    return found


def format_of(dtype: torch.dtype, channels: int) -> Format:
    """Returns the format whose components are the numbers of a tensor. Raises TypeError for dtypes without one, ValueError
    for numbers of channels without one."""
    if dtype not in _BY_DTYPE:
        raise TypeError(f"a tensor of {dtype} has no pixel format")
    for letters, count in _NUMBERS.items():
        if count == channels:
            return FORMATS[letters + _BY_DTYPE[dtype]]
    raise ValueError(f"a texture has 1, 2 or 4 channels, but got {channels}")
