"""Values of function constants, as the bytes of their types."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence

# A vector takes a sequence; bytes are the memory of any type.
Value = bool | int | float | bytes | Sequence[bool | int | float]

# Codes of the struct module, by type.
_CODES = {
    "bool": "?",
    "char": "b",
    "int8_t": "b",
    "uchar": "B",
    "uint8_t": "B",
    "short": "h",
    "int16_t": "h",
    "ushort": "H",
    "uint16_t": "H",
    "int": "i",
    "int32_t": "i",
    "uint": "I",
    "unsigned": "I",
    "unsigned int": "I",
    "uint32_t": "I",
    "long": "q",
    "int64_t": "q",
    "ulong": "Q",
    "uint64_t": "Q",
    "size_t": "Q",
    "half": "e",
    "bfloat": "bfloat",
    "float": "f",
}
_NAMES = {"f": "a float", "e": "a float", "bfloat": "a float", "?": "a bool"}
_VECTOR = re.compile(r"(\w+?)([234])")


def _layout(type_name: str) -> tuple[str, str | None, int]:
    """Returns the plain name of a type, the code of its components or None, and how many there are."""
    name = re.sub(r"\s+", " ", type_name.replace("metal::", "")).strip()
    vector = _VECTOR.fullmatch(name)
    if name not in _CODES and vector and vector[1] in _CODES:
        return name, _CODES[vector[1]], int(vector[2])
    return name, _CODES.get(name), 1


def bytes_of(value: Value, type_name: str, what: str) -> bytes:
    """Returns the memory of a value of a Metal type: a scalar, or a vector of that many scalars. what: names it in
    errors.

    Raises TypeError for values of other types, ValueError for numbers and bytes that do not fit.
    """
    name, code, count = _layout(type_name)
    size = code and _size(code) * (4 if count == 3 else count)
    what = f"{what} ({name})"
    if isinstance(value, bytes):
        if size and len(value) != size:
            raise ValueError(f"{what} has {size} bytes, but got {len(value)}")
        return value
    if code is None:
        raise TypeError(
            f"{what} takes bytes, because its type is not known here, but got {value!r}"
        )
    if count == 1:
        return _packed(value, code, what)
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise TypeError(f"{what} takes {count} numbers or {size} bytes, but got {value!r}")
    return b"".join(_packed(v, code, what) for v in value).ljust(size, b"\0")


def literal_of(memory: bytes | None, type_name: str) -> str:
    """Returns a value of a type as Metal text, from its memory; without memory, zero. Raises ValueError for unknown
    types."""
    name, code, count = _layout(type_name)
    if memory is None:
        return f"{name}(0)"
    if code is None:
        raise ValueError(f"a function constant of type {name!r} cannot be given a value on a Mac")
    size = _size(code)
    return (
        f"{name}({', '.join(_text(memory[i * size : (i + 1) * size], code) for i in range(count))})"
    )


def _text(memory: bytes, code: str) -> str:
    if code == "bfloat":
        memory, code = b"\0\0" + memory, "f"
    (value,) = struct.unpack("<" + code, memory)
    if code == "?":
        return "true" if value else "false"
    if code in "ef":
        if math.isfinite(value):
            return f"{value!r}f"
        return "NAN" if value != value else "INFINITY" if value > 0 else "-INFINITY"
    if value < 0:
        return f"({value + 1}l - 1)"  # the magnitude of the smallest integer is too large for a literal
    return f"{value}{'ul' if value >= 2**63 else 'l'}"


def _size(code: str) -> int:
    return 2 if code == "bfloat" else struct.calcsize("<" + code)


def _packed(value: object, code: str, what: str) -> bytes:
    is_float = _NAMES.get(code) == "a float"
    fits = isinstance(value, (bool, int, float) if is_float else (bool, int))
    if code == "?":
        fits = isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))
    if not fits:
        raise TypeError(
            f"{what} takes {_NAMES.get(code, 'an int')} or {_size(code)} bytes, but got {value!r}"
        )
    if code == "bfloat":
        return struct.pack("<H", _bfloat(value))
    if is_float:
        try:
            return struct.pack("<" + code, float(value))
        except OverflowError:  # rounds to infinity
            return struct.pack("<" + code, math.inf if value > 0 else -math.inf)
    try:
        return struct.pack("<" + code, value)
    except struct.error:
        raise ValueError(f"{what} does not hold {value}") from None


def _bfloat(number: float) -> int:
    """Returns the bits of the nearest bfloat."""
    if number != number:
        return 0x7FC0
    (bits,) = struct.unpack("<I", _packed(number, "f", ""))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
