"""metalops.texture: a texture over the memory of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .formats import WRITE, Format, format_named, format_of
from .layout import KINDS, MOST_LEVELS, Layout, LevelLayout

# The dimensions of a tensor before its channels, by the kind of texture, in the order of msl::abi::TextureKind.
_DIMENSIONS = {
    "1d": ("width",),
    "1d_array": ("elements", "width"),
    "2d": ("height", "width"),
    "2d_array": ("elements", "height", "width"),
    "3d": ("depth", "height", "width"),
    "cube": ("faces", "height", "width"),
    "cube_array": ("elements", "faces", "height", "width"),
    "buffer": ("width",),
}
_LARGEST = {"width": 16384, "height": 16384, "depth": 2048, "elements": 2048}  # of Apple's GPUs
_LARGEST_BUFFER = 1 << 28  # texels of a texture buffer


class Texture:
    """A texture over tensors, made by metalops.texture.

    levels: the tensors, one for each level. format and kind: as metalops.texture takes them. width, height, depth and
    array_size: of the first level, in texels; 1 for what the kind does not have. layout: where its texels are.
    """

    def __init__(self, levels: tuple[torch.Tensor, ...], layout: Layout):
        self.levels = levels
        self.layout = layout
        self.kind = layout.kind
        self.format = layout.format.name
        self.pixel_format = layout.format.pixel_format
        first = layout.levels[0]
        self.width, self.height, self.depth = first.width, first.height, first.depth
        self.array_size = layout.layers // (6 if self.kind.startswith("cube") else 1)
        # msl::abi::Texture without the addresses of its levels.
        self.description = layout.described([0] * len(levels))

    @property
    def device(self) -> torch.device:
        return self.levels[0].device

    def described(self) -> bytes:
        """Returns msl::abi::Texture with the levels that exist, at their addresses."""
        return self.layout.described([level.data_ptr() for level in self.levels])

    @property
    def parameter(self) -> str:
        """The type of a kernel's parameter that takes the texture to sample and read it."""
        return self.layout.parameter("read" if self.kind == "buffer" else "sample")

    def __repr__(self) -> str:
        size = " x ".join(
            str(getattr(self, n))
            for n in ("width", "height", "depth")
            if n in _DIMENSIONS[self.kind]
        )
        array = f", {self.array_size} elements" if "elements" in _DIMENSIONS[self.kind] else ""
        levels = f", {len(self.levels)} levels" if len(self.levels) > 1 else ""
        return f"metalops.Texture({self.kind}, {self.format}, {size}{array}{levels})"


class _Level:
    """The sizes and strides of one level."""

    def __init__(self, tensor: torch.Tensor, format: Format, kind: str):
        self.names = names = _DIMENSIONS[kind]
        if tensor.dtype not in format.dtypes:
            wanted = " or ".join(sorted(str(d) for d in format.dtypes))
            raise TypeError(
                f"a texture of {format.name} takes a tensor of {wanted}, but got one of {tensor.dtype}"
            )
        has_channels = tensor.dim() == len(names) + 1
        shape = f"({', '.join(names)}{', channels' if format.per_texel > 1 else ''})"
        if not has_channels and (tensor.dim() != len(names) or format.per_texel != 1):
            raise ValueError(
                f"a {kind} texture of {format.name} takes a tensor of shape {shape}, but got {tuple(tensor.shape)}"
            )
        if has_channels and tensor.shape[-1] != format.per_texel:
            raise ValueError(
                f"a texel of {format.name} is {format.per_texel} elements of {tensor.dtype}, but the tensor of shape "
                f"{tuple(tensor.shape)} has {tensor.shape[-1]} channels"
            )
        if has_channels and format.per_texel > 1 and tensor.stride(-1) != 1:
            raise ValueError(
                f"the channels of a texel must follow each other, but the strides are {tensor.stride()}"
            )
        self.sizes = dict(zip(names, tensor.shape, strict=False))
        strides = {
            n: s * tensor.element_size() for n, s in zip(names, tensor.stride(), strict=False)
        }
        for name, size in self.sizes.items():
            largest = _LARGEST_BUFFER if kind == "buffer" else _LARGEST.get(name, 6)
            if not 1 <= size <= largest:
                raise ValueError(
                    f"the {name} of a texture must be from 1 to {largest}, but the shape is {tuple(tensor.shape)}"
                )
        if self.extent("faces") != (6 if "faces" in names else 1):
            raise ValueError(f"a cube has 6 faces, but the shape is {tuple(tensor.shape)}")
        if "faces" in names and self.sizes["width"] != self.sizes["height"]:
            raise ValueError(
                f"the faces of a cube are squares, but the shape is {tuple(tensor.shape)}"
            )
        # Each dimension must lie beyond the one inside of it; that of size 1 has any stride.
        inner = format.bytes
        if self.sizes["width"] > 1 and strides["width"] != inner:
            raise ValueError(
                f"the texels of a row must follow each other, but the strides are {tensor.stride()}"
            )
        found = {}
        inner *= self.sizes["width"]
        for name in reversed(names[:-1]):
            size = self.sizes[name]
            stride = strides[name] if size > 1 else inner
            if stride < inner:
                raise ValueError(
                    f"texels of a texture must not overlap, but the strides are {tensor.stride()}"
                )
            found[name] = stride
            inner = stride * size
        self.row_bytes = found.get("height", self.sizes["width"] * format.bytes)
        self.slice_bytes = (
            found.get("depth") or found.get("faces") or found.get("elements") or inner
        )
        if {"elements", "faces"} <= found.keys() and self.sizes["elements"] > 1:
            if found["elements"] != 6 * found["faces"]:
                raise ValueError(
                    f"the cubes of an array must follow each other, but the strides are {tensor.stride()}"
                )

    def extent(self, name: str) -> int:
        return self.sizes.get(name, 1)

    def check_follows(self, first: _Level, number: int) -> None:
        """Raises ValueError unless this is the level of that number."""
        halved = {"width", "height", "depth"}
        for name, size in first.sizes.items():
            wanted = max(size >> number, 1) if name in halved else size
            if self.sizes[name] != wanted:
                raise ValueError(
                    f"level {number} of the texture must have {name} {wanted}, but has {self.sizes[name]}"
                )

    @property
    def layout(self) -> LevelLayout:
        return LevelLayout(
            self.extent("width"),
            self.extent("height"),
            self.extent("depth"),
            self.row_bytes,
            self.slice_bytes,
        )


def texture(
    tensor: torch.Tensor | Sequence[torch.Tensor],
    format: str | None = None,
    kind: str = "2d",
) -> Texture:
    """Makes a texture of a tensor's memory, which it shares, as an argument of kernels.

    Among the arguments of a kernel textures count for themselves: the first one is texture(0), the second one texture(1).

    Args:
        tensor: the texels, on the device of the kernel. Its shape is (height, width, channels) for a 2d texture,
            (elements, height, width, channels) for a 2d_array, (depth, height, width, channels) for a 3d, (6, height,
            width, channels) for a cube, (elements, 6, height, width, channels) for a cube_array, (width, channels) for
            a 1d texture and a buffer, (elements, width, channels) for a 1d_array. The dimension of channels may be
            absent if there is one. The texels of a row must be contiguous; rows and slices may have any distance.
            A sequence of tensors is the levels of a texture with mipmaps, each half as large as the one before,
            rounded down, and at least 1.
        format: the pixel format, named as MTLPixelFormat's in lower case, such as "rgba8unorm", "rgba8unorm_srgb",
            "rg16float" or "depth32float". By default the numbers of the tensor as they are: "rgba32float" for four
            channels of float32, "r8uint" for one of uint8. Packed formats such as "rgb10a2unorm" have texels of one
            integer.
        kind: "1d", "1d_array", "2d", "2d_array", "3d", "cube", "cube_array" or "buffer".

    Raises:
        TypeError: no tensors; a dtype that the format does not have, or without a format.
        ValueError: an unknown format or kind; a shape, strides or levels that no such texture has.
    """
    if kind not in _DIMENSIONS:
        raise ValueError(
            f"kind is {kind!r}; it must be {', '.join(map(repr, KINDS[:-1]))} or {KINDS[-1]!r}"
        )
    levels = (tensor,) if isinstance(tensor, torch.Tensor) else tuple(tensor)
    if not all(isinstance(level, torch.Tensor) for level in levels):
        raise TypeError("texture() takes a tensor, or the tensors of its levels")
    if not 1 <= len(levels) <= (MOST_LEVELS if kind != "buffer" else 1):
        raise ValueError(f"a {kind} texture cannot have {len(levels)} levels")
    if len({level.device for level in levels}) > 1:
        raise ValueError(
            f"the levels are on several devices: {', '.join(str(t.device) for t in levels)}"
        )
    if format is None:
        channels = levels[0].shape[-1] if levels[0].dim() > len(_DIMENSIONS[kind]) else 1
        described = format_of(levels[0].dtype, channels)
    else:
        described = format_named(format)
    sizes = [_Level(level, described, kind) for level in levels]
    for number, level in enumerate(sizes):
        level.check_follows(sizes[0], number)
    layers = sizes[0].extent("elements") * sizes[0].extent("faces")
    return Texture(levels, Layout(kind, described, layers, tuple(x.layout for x in sizes)))


def contiguous_layout(
    owner: str,
    text: str,
    shape: Sequence[int],
    dtype: torch.dtype | None = None,
    is_written: bool = False,
) -> Layout:
    """Returns the layout of a texture over a row-contiguous tensor of the shape and dtype (default: the format's). text: a
    pixel format, after which a kind of texture may follow; it is "2d" otherwise. owner: the subject of errors.

    Raises ValueError or TypeError for what no texture is, or what kernels do not write.
    """
    words = text.split()
    if not 1 <= len(words) <= 2:
        raise ValueError(f"{owner} is a pixel format and a kind of texture, but got {text!r}")
    format, kind = [*words, "2d"][:2]
    try:
        dtype = dtype or format_named(format).dtype
        layout = texture(torch.empty(shape, dtype=dtype, device="meta"), format, kind).layout
    except (ValueError, TypeError) as error:
        raise type(error)(f"{owner}: {error}") from None
    if is_written and not layout.format.usage & WRITE:
        raise TypeError(f"{owner}: kernels cannot write a texture of {format}")
    return layout
