"""Metallibs for the software device: containers of kernel libraries, one for each Metal file that they were linked from,
which newLibraryWithURL, newLibraryWithData and torch.mps.load_metallib open (csrc/host/metal/metallib.cpp).

An `.air` file is a container of one library. Linking copies the libraries of several into one container. All numbers are
little-endian:

    "METALOPS"  uint32 version  uint32 number of libraries
    for each library:
        uint32 language (__METAL_VERSION__)
        uint64 sizes of: file name, kernel names, source, library
        the file's name; the kernels' names, each with a "\\0" behind it; the preprocessed Metal source, deflated by zlib;
        the kernel library, a shared object

The source is what the library was compiled from, and is compiled again where the library cannot run.

Imports neither torch nor the device.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

MAGIC = b"METALOPS"
VERSION = 1
_HEADER = struct.Struct("<8sII")
_PART = struct.Struct("<I4Q")


class NotAMetallib(ValueError):
    """Data that is not a container of this version; the text says why."""


@dataclass(frozen=True)
class Part:
    """The library of one Metal file. source: preprocessed, deflated by zlib."""

    name: str
    language: int
    kernels: tuple[str, ...]
    source: bytes
    library: bytes


def pack(parts: Iterable[Part]) -> bytes:
    """Returns the container of libraries. Raises ValueError if two have a kernel of the same name."""
    listed = list(parts)
    owners: dict[str, str] = {}
    data = [_HEADER.pack(MAGIC, VERSION, len(listed))]
    for part in listed:
        for kernel in part.kernels:
            other = owners.setdefault(kernel, part.name)
            if other != part.name:
                raise ValueError(f"the kernel {kernel} is in both {other} and {part.name}")
        names = "".join(f"{kernel}\0" for kernel in part.kernels).encode()
        fields = [part.name.encode(errors="surrogateescape"), names, part.source, part.library]
        data += [_PART.pack(part.language, *map(len, fields)), *fields]
    return b"".join(data)


def unpack(data: bytes) -> list[Part]:
    """Returns the libraries of a container. Raises NotAMetallib."""
    if data[:4] == b"MTLB":
        raise NotAMetallib("it is compiled for Apple GPUs")
    if data[: len(MAGIC)] != MAGIC:
        raise NotAMetallib("it is no metallib of metalops")
    try:
        _, version, count = _HEADER.unpack_from(data)
        if version != VERSION:
            raise NotAMetallib(f"it has version {version} of the format, and not {VERSION}")
        at, parts = _HEADER.size, []
        for _ in range(count):
            language, *sizes = _PART.unpack_from(data, at)
            at += _PART.size
            fields = []
            for size in sizes:
                if size > len(data) - at:
                    raise NotAMetallib("it is incomplete")
                fields.append(data[at : at + size])
                at += size
            name, kernels, source, library = fields
            names = tuple(kernels.decode().split("\0")[:-1])
            parts.append(
                Part(name.decode(errors="surrogateescape"), language, names, source, library)
            )
    except struct.error:
        raise NotAMetallib("it is incomplete") from None
    if at != len(data) or not parts:
        raise NotAMetallib("it is damaged")
    return parts


def compile_source(source: bytes, language: int, name: str) -> str:
    """Compiles the source of a part and returns the path of its library, which is cached. Raises as
    metalops.msl.compile_source does."""
    from metalops import msl

    text = zlib.decompress(source).decode(errors="replace")
    return msl.compile_source(text, name, options=msl.Options(language=language, on_demand=True))


def compile_with_options(source: str, language: int, fast_math: bool) -> str:
    """Compiles Metal source as MTLCompileOptions say and returns the path of its library. language: __METAL_VERSION__, or
    0 for that of sources that do not name one. Raises what metalops.msl.compile_source() raises."""
    from metalops import msl

    options = msl.runtime_options(language or None)
    return msl.compile_source(source, options=dataclasses.replace(options, fast_math=fast_math))
