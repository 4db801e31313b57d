"""Textures and samplers against the parameters of a kernel that take them: the counterpart of
csrc/host/metal/texture_argument.cpp for other devices than the software device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .formats import READ_WRITE, WRITE
from .layout import KINDS
from .sampler import Sampler
from .texture import Texture

ACCESSES = ("sample", "read", "write", "read_write")  # msl::abi::TextureAccess, in order
_WRITTEN, _READ_AND_WRITTEN = 2, 3
_COMPONENTS = ("floating-point", "signed integer", "unsigned integer")
_COMPONENT_OF = {"half": 0, "float": 0, "short": 1, "int": 1, "long": 1}
_COMPONENT_OF |= {"ushort": 2, "uint": 2, "ulong": 2}
_TYPE = re.compile(
    r"\b(?:texture|depth)_?(?P<kind>\w+)\s*<\s*(?:metal\s*::\s*)?(?P<component>\w+)(?P<rest>[^>]*)>"
)
_ACCESS = re.compile(r"\baccess\s*::\s*(\w+)")
_ARRAY = re.compile(r"\barray\s*<.*,\s*(\d+)\s*>\s*$", re.DOTALL)


@dataclass(frozen=True)
class HandleArgument:
    """A kernel's parameter that is a texture or a sampler. name, type: as written. index: of its first texture, or of the
    sampler. is_on: false if a function constant switches it off. kind, component, access: of the textures, numbers of
    msl::abi; -1 for one that the text does not show. count: of an array of textures; 0 for a sampler."""

    name: str
    type: str
    index: int
    is_on: bool = True
    kind: int = -1
    component: int = -1
    access: int = 0
    count: int = 0

    @property
    def last(self) -> int:
        return self.index + max(self.count, 1) - 1


def texture_argument(name: str, type_: str, index: int, is_on: bool = True) -> HandleArgument:
    """Returns a texture parameter as its text shows it."""
    array = _ARRAY.search(type_)
    count = int(array[1]) if array else 1
    match = _TYPE.search(type_)
    if match is None:  # an alias
        return HandleArgument(name, type_, index, is_on, count=count)
    access = _ACCESS.search(match["rest"])
    return HandleArgument(
        name,
        type_,
        index,
        is_on,
        KINDS.index(match["kind"]) if match["kind"] in KINDS else -1,
        _COMPONENT_OF.get(match["component"], -1),
        ACCESSES.index(access[1]) if access and access[1] in ACCESSES else 0,
        count,
    )


def bound(
    kernel: str,
    arguments: Sequence[HandleArgument],
    textures: Sequence[Texture | None],
    samplers: Sequence[Sampler | None],
) -> Iterator[tuple[HandleArgument, Texture | Sampler | None]]:
    """Yields what is bound to each texture and sampler of a kernel, in order; None to one that is switched off. textures,
    samplers: by their indices.

    Raises RuntimeError if one is missing, if there is one that the kernel does not have, or if the storage of a texture
    has become too small; TypeError for a texture of another kind or other components, or of a format that kernels cannot
    write.
    """
    for what, values in (("texture", textures), ("sampler", samplers)):
        own = [a.last for a in arguments if (a.count == 0) == (what == "sampler")]
        if len(values) > max(own, default=-1) + 1:
            raise RuntimeError(f"Metal kernel '{kernel}' has no {what} {len(values) - 1}")
    for argument in arguments:
        what, values = ("sampler", samplers) if argument.count == 0 else ("texture", textures)
        for index in range(argument.index, argument.last + 1):
            value = values[index] if index < len(values) else None
            if value is None and argument.is_on:
                raise RuntimeError(
                    f"Metal kernel '{kernel}': nothing is bound to {what} {index} ('{argument.type} {argument.name}')"
                )
            if isinstance(value, Texture):
                _check(kernel, argument, index, value)
            yield argument, value


def _check(kernel: str, argument: HandleArgument, index: int, texture: Texture) -> None:
    owner = (
        f"Metal kernel '{kernel}': argument '{argument.name}' (texture {index}, '{argument.type}')"
    )
    if argument.kind not in (-1, texture.layout.kind_number):
        raise TypeError(
            f"{owner} takes a texture of kind '{KINDS[argument.kind]}', but got one of kind '{texture.kind}'"
        )
    if argument.component not in (-1, texture.layout.format.component):
        wanted, got = (
            _COMPONENTS[c] for c in (argument.component, texture.layout.format.component)
        )
        raise TypeError(
            f"{owner} has {wanted} components, but the format of the texture has {got} ones"
        )
    if argument.access == _WRITTEN and not texture.layout.format.usage & WRITE:
        raise TypeError(f"{owner} is written, but kernels cannot write the format of the texture")
    if argument.access == _READ_AND_WRITTEN and not texture.layout.format.usage & READ_WRITE:
        raise TypeError(
            f"{owner} has access::read_write, which the format of the texture does not have"
        )
    for number, (tensor, end) in enumerate(zip(texture.levels, texture.layout.ends, strict=True)):
        offset = tensor.storage_offset() * tensor.element_size()
        if offset + end > tensor.untyped_storage().nbytes():
            raise RuntimeError(
                f"{owner}: the storage of level {number} of the texture has become too small"
            )
