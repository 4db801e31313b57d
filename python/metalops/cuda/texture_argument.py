"""Textures over CUDA tensors, and samplers, as arguments of kernels: the counterpart of
csrc/host/metal/texture_argument.cpp on mps."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from .._textures import Sampler, Texture
from .._textures.formats import READ_WRITE, WRITE
from .._textures.texture import KINDS

# msl::abi::HandleArgument of include/msl/cuda/texture_argument.h: index, is_on; TextureKind, TextureComponent,
# TextureAccess, is_depth, count.
_ARGUMENT = struct.Struct("<7I")
_WRITTEN, _READ_AND_WRITTEN = 2, 3  # msl::abi::TextureAccess
_COMPONENTS = ("floating-point", "signed integer", "unsigned integer")


@dataclass(frozen=True)
class HandleArgument:
    """A kernel's parameter that is a texture or a sampler. name, type: as written. index: of its first texture, or of the
    sampler. is_on: false if a function constant switches it off. count: of an array of textures; 0 for a sampler. kind,
    component, access: of the textures, numbers of msl::abi."""

    name: str
    type: str
    index: int
    is_on: bool
    kind: int
    component: int
    access: int
    count: int


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
    """Returns the table that a launch passes for its textures and samplers, which are numbered apart.

    Raises RuntimeError if one is missing, if there is one that the kernel does not have, or if the storage of a texture
    has become too small; TypeError for a texture of another kind or other components, or of a format that kernels cannot
    write.
    """
    _check_numbers(kernel, arguments, "texture", len(textures))
    _check_numbers(kernel, arguments, "sampler", len(samplers))
    entries, descriptions = [], b""
    size = 8 * sum(max(a.count, 1) for a in arguments)
    for argument in arguments:
        values = samplers if argument.count == 0 else textures
        for index in range(argument.index, argument.index + max(argument.count, 1)):
            if index >= len(values):
                if argument.is_on:
                    what = "sampler" if argument.count == 0 else "texture"
                    raise RuntimeError(
                        f"Metal kernel '{kernel}': nothing is bound to {what} {index} ('{argument.type} {argument.name}')"
                    )
                entries.append(0)
            elif argument.count == 0:
                entries.append(values[index].bits)
            else:
                entries.append(size + len(descriptions))
                descriptions += _described(kernel, argument, index, values[index])
    return struct.pack(f"<{len(entries)}Q", *entries) + descriptions


def _check_numbers(kernel: str, arguments: Sequence[HandleArgument], what: str, given: int) -> None:
    ends = [a.index + max(a.count, 1) for a in arguments if (a.count == 0) == (what == "sampler")]
    if given > max(ends, default=0):
        raise RuntimeError(f"Metal kernel '{kernel}' has no {what} {given - 1}")


def _described(kernel: str, argument: HandleArgument, index: int, texture: Texture) -> bytes:
    owner = (
        f"Metal kernel '{kernel}': argument '{argument.name}' (texture {index}, '{argument.type}')"
    )
    if texture.kind_number != argument.kind:
        wanted = KINDS[argument.kind]
        raise TypeError(
            f"{owner} takes a texture of kind '{wanted}', but got one of kind '{texture.kind}'"
        )
    if texture.component != argument.component:
        wanted, got = (_COMPONENTS[c] for c in (argument.component, texture.component))
        raise TypeError(
            f"{owner} has {wanted} components, but the format of the texture has {got} ones"
        )
    if argument.access == _WRITTEN and not texture.usage & WRITE:
        raise TypeError(f"{owner} is written, but kernels cannot write the format of the texture")
    if argument.access == _READ_AND_WRITTEN and not texture.usage & READ_WRITE:
        raise TypeError(
            f"{owner} has access::read_write, which the format of the texture does not have"
        )
    for number, (tensor, end) in enumerate(zip(texture.levels, texture.ends, strict=True)):
        offset = tensor.storage_offset() * tensor.element_size()
        if offset + end > tensor.untyped_storage().nbytes():
            raise RuntimeError(
                f"{owner}: the storage of level {number} of the texture has become too small"
            )
    return texture.description_at([tensor.data_ptr() for tensor in texture.levels])
