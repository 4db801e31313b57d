"""Textures over CUDA tensors, and samplers, as arguments of kernels."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from .._textures import Sampler, Texture
from .._textures.argument import HandleArgument, bound

# msl::abi::HandleArgument of include/msl/cuda/texture_argument.h: index, is_on; TextureKind, TextureComponent,
# TextureAccess, is_depth, count.
_ARGUMENT = struct.Struct("<7I")


def unpack(facts: bytes, names: Sequence[tuple[str, str]]) -> tuple[HandleArgument, ...]:
    """Returns a kernel's textures and samplers from a module's table. names: their names and types."""
    return tuple(
        HandleArgument(*named, index, bool(is_on), kind, component, access, count)
        for named, (index, is_on, kind, component, access, _, count) in zip(
            names, _ARGUMENT.iter_unpack(facts), strict=True
        )
    )


def tensors_of(values: Iterable[object]) -> Iterator[Tensor]:
    """Yields the tensors among the arguments of a kernel, those of textures included."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Texture):
            yield from value.levels


def table(
    kernel: str,
    arguments: Sequence[HandleArgument],
    textures: Sequence[Texture],
    samplers: Sequence[Sampler],
) -> bytes:
    """Returns the table that a launch passes for its textures and samplers, which are numbered apart. Raises what
    metalops._textures.argument.bound raises."""
    entries: list[int] = []
    descriptions = b""
    size = 8 * sum(max(argument.count, 1) for argument in arguments)
    for _, value in bound(kernel, arguments, textures, samplers):
        if isinstance(value, Texture):
            entries.append(size + len(descriptions))
            descriptions += value.described()
        else:
            entries.append(0 if value is None else value.bits)
    return struct.pack(f"<{len(entries)}Q", *entries) + descriptions
