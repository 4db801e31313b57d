"""Where the texels of a texture are: what kernels get, msl::abi::Texture of include/msl/texture_abi.h."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .formats import FORMATS, Format

KINDS = (
    "1d",
    "1d_array",
    "2d",
    "2d_array",
    "3d",
    "cube",
    "cube_array",
    "buffer",
)  # abi::TextureKind
MOST_LEVELS = 15
_HEAD = struct.Struct("<I4B4I")  # msl::abi::Texture without its levels
_LEVEL = struct.Struct("<3Q4I")  # msl::abi::TextureLevel
_WITHOUT_HEIGHT = ("1d", "1d_array", "buffer")
_FORMATS = {(f.encoding, f.channels, f.order, f.bytes, f.usage): f for f in FORMATS.values()}


@dataclass(frozen=True)
class LevelLayout:
    """Sizes in texels, and the bytes from one row and slice to the next."""

    width: int
    height: int
    depth: int
    row_bytes: int
    slice_bytes: int


@dataclass(frozen=True)
class Layout:
    """kind: as metalops.texture takes it. layers: array elements; of cubes, their faces."""

    kind: str
    format: Format
    layers: int
    levels: tuple[LevelLayout, ...]

    @property
    def kind_number(self) -> int:
        """The number of its msl::abi::TextureKind."""
        return KINDS.index(self.kind)

    def parameter(self, access: str) -> str:
        """Returns the type of a kernel's parameter that takes such a texture."""
        component = ("float", "int", "uint")[self.format.component]
        name = "depth" if self.format.is_depth else "texture"
        return f"{name}{'_' * (self.kind == 'buffer')}{self.kind}<{component}, access::{access}>"

    @property
    def ends(self) -> tuple[int, ...]:
        """How many bytes after the first texel of each level its last one ends."""
        return tuple(
            (self.layers * level.depth - 1) * level.slice_bytes
            + (level.height - 1) * level.row_bytes
            + level.width * self.format.bytes
            for level in self.levels
        )

    @property
    def bytes(self) -> int:
        """The bytes of all texels."""
        texels = sum(level.width * level.height * level.depth for level in self.levels)
        return texels * self.layers * self.format.bytes

    def described(self, addresses: Sequence[int]) -> bytes:
        """Returns msl::abi::Texture with the levels that exist, at these addresses."""
        format = self.format
        head = _HEAD.pack(
            self.kind_number,
            format.encoding,
            format.channels,
            format.order,
            format.bytes,
            self.layers,
            len(self.levels),
            format.usage,
            0,
        )
        return head + b"".join(
            _LEVEL.pack(a, x.row_bytes, x.slice_bytes, x.width, x.height, x.depth, 0)
            for a, x in zip(addresses, self.levels, strict=True)
        )


def layout_of(description: bytes) -> Layout:
    """Returns the layout of msl::abi::Texture, without its addresses. Raises ValueError for what no texture has."""
    if len(description) < _HEAD.size:
        raise ValueError(f"its description has {len(description)} bytes")
    kind, *format, layers, count, usage, _ = _HEAD.unpack_from(description)
    if kind >= len(KINDS):
        raise ValueError(f"there is no kind {kind}")
    found = _FORMATS.get((*format, usage))
    if found is None:
        raise ValueError(f"there is no format {(*format, usage)}")
    if not 1 <= count <= MOST_LEVELS or len(description) != _HEAD.size + count * _LEVEL.size:
        raise ValueError(f"its description of {count} levels has {len(description)} bytes")
    name = KINDS[kind]
    levels = []
    for _, row_bytes, slice_bytes, *sizes, _ in _LEVEL.iter_unpack(description[_HEAD.size :]):
        width, height, depth = sizes
        is_flat = (name not in _WITHOUT_HEIGHT or height == 1) and (name == "3d" or depth == 1)
        if 0 in sizes or not is_flat or max(sizes) > 1 << 28:
            raise ValueError(
                f"a texture of kind {name} has no level of {width} x {height} x {depth}"
            )
        levels.append(LevelLayout(width, height, depth, row_bytes, slice_bytes))
    has_layers = name.endswith("_array") or name == "cube"
    faces = 6 if name.startswith("cube") else 1
    if layers == 0 or layers % faces or (not has_layers and layers != 1):
        raise ValueError(f"a texture of kind {name} has no {layers} layers")
    return Layout(name, found, layers, tuple(levels))
