"""metalops.sampler: a sampler that the host makes."""

from __future__ import annotations

import struct

_ADDRESSES = (
    "clamp_to_edge",
    "clamp_to_zero",
    "clamp_to_border",
    "repeat",
    "mirrored_repeat",
    "mirror_clamp_to_edge",
)
_FILTERS = ("nearest", "linear")
_MIP_FILTERS = ("none", "nearest", "linear")
_COMPARISONS = (
    "none",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "equal",
    "not_equal",
    "always",
    "never",
)
_BORDERS = ("transparent_black", "opaque_black", "opaque_white")
_COORDINATES = ("normalized", "pixel")


class Sampler:
    """A sampler, made by metalops.sampler. options: what it was made of. bits: as msl/texture_abi.h defines them."""

    def __init__(self, options: dict[str, object], bits: int):
        self.options = options
        self.bits = bits

    parameter = "sampler"

    def __repr__(self) -> str:
        return f"metalops.Sampler({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


def sampler(
    filter: str = "nearest",
    address: str | tuple[str, ...] = "clamp_to_edge",
    coord: str = "normalized",
    *,
    mag_filter: str | None = None,
    min_filter: str | None = None,
    mip_filter: str = "none",
    compare_func: str = "none",
    border_color: str = "transparent_black",
    lod_clamp: tuple[float, float] = (0.0, float("inf")),
    max_anisotropy: int = 1,
) -> Sampler:
    """Makes a sampler as an argument of kernels, with the names that Metal gives to the options of a sampler in a source.

    Among the arguments of a kernel samplers count for themselves: the first one is sampler(0), the second one sampler(1).

    Args:
        filter: "nearest" or "linear"; mag_filter and min_filter, where given, for one of the two.
        address: what is beyond the edges: "clamp_to_edge", "clamp_to_zero", "clamp_to_border", "repeat",
            "mirrored_repeat" or "mirror_clamp_to_edge"; or up to three of them, for s, t and r.
        coord: "normalized", or "pixel" for coordinates in texels, which have no periodic address modes and no levels.
        mip_filter: "none", "nearest" or "linear".
        compare_func: for sample_compare: "never", "less", "less_equal", "greater", "greater_equal", "equal",
            "not_equal", "always"; "none" is as "never".
        border_color: of clamp_to_border: "transparent_black", "opaque_black" or "opaque_white".
        lod_clamp: the least and the largest level of detail, rounded to half.
        max_anisotropy: from 1 to 16. The software device filters isotropically.

    Raises:
        TypeError: an option of another type.
        ValueError: an unknown option, or options that Metal does not combine.
    """
    addresses = (address,) * 3 if isinstance(address, str) else tuple(address)
    if not 1 <= len(addresses) <= 3:
        raise ValueError(f"address has 1 to 3 modes, but got {len(addresses)}")
    addresses += (addresses[-1],) * (3 - len(addresses))
    modes = [_number("address", mode, _ADDRESSES) for mode in addresses]
    mag = _number("mag_filter", filter if mag_filter is None else mag_filter, _FILTERS)
    smaller = _number("min_filter", filter if min_filter is None else min_filter, _FILTERS)
    mip = _number("mip_filter", mip_filter, _MIP_FILTERS)
    pixel = _number("coord", coord, _COORDINATES)
    if pixel and any(mode >= _ADDRESSES.index("repeat") for mode in modes):
        raise ValueError(
            "coord='pixel' takes the address modes clamp_to_edge, clamp_to_zero and clamp_to_border"
        )
    if pixel and (mip or mag != smaller):
        raise ValueError("coord='pixel' takes no mip_filter, and one filter for both directions")
    if isinstance(max_anisotropy, bool) or not isinstance(max_anisotropy, int):
        raise TypeError(f"max_anisotropy is an int, but got {max_anisotropy!r}")
    if not 1 <= max_anisotropy <= 16:
        raise ValueError(f"max_anisotropy must be from 1 to 16, but is {max_anisotropy}")
    least, most = lod_clamp
    if not 0 <= least <= most:
        raise ValueError(
            f"lod_clamp must be two numbers that are not negative, in order, but is {lod_clamp}"
        )
    bits = mag | smaller << 1 | mip << 2 | pixel << 13
    for axis, mode in enumerate(modes):
        bits |= mode << (4 + 3 * axis)
    bits |= _number("compare_func", compare_func, _COMPARISONS) << 14
    bits |= _number("border_color", border_color, _BORDERS) << 18
    bits |= max_anisotropy << 20 | _half(least) << 32 | _half(most) << 48
    options = {
        "mag_filter": _FILTERS[mag],
        "min_filter": _FILTERS[smaller],
        "mip_filter": mip_filter,
        "address": addresses,
        "coord": coord,
        "compare_func": compare_func,
        "border_color": border_color,
        "lod_clamp": (least, most),
        "max_anisotropy": max_anisotropy,
    }
    return Sampler(options, bits)


def _number(name: str, value: object, values: tuple[str, ...]) -> int:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, but got {value!r}")
    if value not in values:
        raise ValueError(
            f"{name} is {value!r}; it must be {', '.join(map(repr, values[:-1]))} or {values[-1]!r}"
        )
    return values.index(value)


def _half(value: float) -> int:
    """Returns the bits of the nearest half."""
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0x7C00
