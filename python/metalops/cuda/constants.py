"""Values of function constants, as text for the compiler: see include/msl/cuda/function_constants.h."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

# A number becomes the constant's type; bytes are its memory.
Value = bool | int | float | bytes


def checked(
    constants: Mapping[int | str, Value] | None, indices: Mapping[str, str]
) -> dict[int, Value]:
    """The values by index. indices: the texts of the constants' indices, by their names.

    Raises ValueError for a constant that the source does not have, TypeError for values of other types.
    """
    found = {}
    known = {_integer(text) for text in indices.values()}
    for key, value in (constants or {}).items():
        index = key
        if isinstance(key, str):
            index = _integer(indices[key]) if key in indices else None
            if key in indices and index is None:
                raise ValueError(
                    f"the index of function constant {key!r} is {indices[key]!r}: give its value by that number"
                )
        if index is None or (index not in known and None not in known):
            raise ValueError(f"the kernel library has no function constant {key!r}")
        if not isinstance(value, Value):
            raise TypeError(
                f"function constant {key!r} takes a bool, an int, a float or bytes, but got {value!r}"
            )
        found[index] = value
    return dict(sorted(found.items()))


def _integer(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None


def definitions(constants: Mapping[int, Value]) -> str:
    """What MSL_FUNCTION_CONSTANTS stands for."""
    return " ".join(
        f"template <> struct function_constant<{index}> {{ static constexpr bool is_defined = true; "
        f"template <class T> static constexpr T get() {{ return constant_of<T>({_text(value)}); }} }};"
        for index, value in constants.items()
    )


def _text(value: Value) -> str:
    if isinstance(value, bytes):
        return f"constant_bytes<{len(value)}>{{{', '.join(map(str, value))}}}"
    number = float(value)
    try:
        half = struct.unpack("H", struct.pack("e", number))[0]
    except OverflowError:
        half = 0x7C00 if number > 0 else 0xFC00
    return f"{_literal(value)}, {half}, {_bfloat_bits(number)}"


def _literal(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # The smallest number is the negation of one that is too large.
        return (
            f"({value + 1}ll - 1)" if value < 0 else f"{value}{'ull' if value >= 2**63 else 'll'}"
        )
    if math.isfinite(value):
        return f"({value.hex()})"
    bits = struct.unpack("I", struct.pack("f", value))[0]
    return f"__builtin_bit_cast(float, {bits}u)"


def _bfloat_bits(value: float) -> int:
    try:
        bits = struct.unpack("I", struct.pack("f", value))[0]
    except OverflowError:
        bits = 0x7F800000 if value > 0 else 0xFF800000
    if math.isnan(value):
        return 0x7FC0
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
