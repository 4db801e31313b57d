"""Random textures and samplers, as the device has them and as the reference does."""

from __future__ import annotations

import random

import metalops
import numpy as np
import torch
from metalops._textures.formats import FORMATS

from .reference import Reference, decoded

# The software device or a Mac's; with an NVIDIA GPU, and with nothing built, `PYTHONPATH=python pytest --noconftest` runs
# the same tests there.
DEVICE = "mps" if torch.backends.mps.is_available() else "cuda"
PLAIN = {
    "mag_filter": "nearest",
    "min_filter": "nearest",
    "mip_filter": "none",
    "address": ("clamp_to_edge",) * 3,
    "coord": "normalized",
    "compare_func": "none",
    "border_color": "transparent_black",
    "lod_clamp": (0.0, float("inf")),
}
ADDRESSES = ("clamp_to_edge", "clamp_to_zero", "clamp_to_border", "repeat", "mirrored_repeat")
_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def sampler_of(**options) -> tuple[metalops._textures.Sampler, dict]:
    """Returns a sampler, and the options that the reference takes."""
    made = metalops.sampler(**options)
    return made, PLAIN | made.options


def random_tensor(shape: tuple[int, ...], format: str, seed: int) -> torch.Tensor:
    """Returns texels of a format on the CPU: any bits for integers, ordinary numbers for floats."""
    described = FORMATS[format]
    if described.per_texel > 1:
        shape = (*shape, described.per_texel)
    generator = torch.Generator().manual_seed(seed)
    dtypes = described.dtypes
    if dtypes & {torch.float32, torch.float16}:
        (dtype,) = dtypes
        if described.is_depth:
            return torch.rand(shape, generator=generator)
        return torch.randn(shape, generator=generator).to(dtype)
    size = described.bytes // described.per_texel
    bits = torch.randint(0, 256, (*shape, size), generator=generator, dtype=torch.uint8)
    if format == "rg11b10float":  # finite: no exponent of ones
        bits = torch.randint(0, 2**10 - 32, (*shape, 3), generator=generator)
        code = bits[..., 0] | bits[..., 1] << 11 | (bits[..., 2] // 2) << 22
        return torch.from_numpy(code.numpy().astype(np.uint32).view(np.int32))
    return bits.view(_DTYPES[size]).reshape(shape)


def shape_of(kind: str, size: int, level: int = 0, elements: int = 3) -> tuple[int, ...]:
    """Returns the shape of a level without its channels. Sides differ, except for cubes."""
    sides = [max(side >> level, 1) for side in (size, size + 2, size - 1)]
    width, height, depth = sides
    return {
        "1d": (width,),
        "1d_array": (elements, width),
        "2d": (height, width),
        "2d_array": (elements, height, width),
        "3d": (depth, height, width),
        "cube": (6, width, width),
        "cube_array": (elements, 6, width, width),
        "buffer": (width,),
    }[kind]


def random_texture(
    kind: str, format: str, size: int = 6, levels: int = 1, seed: int = 0, device: str = DEVICE
) -> tuple[metalops._textures.Texture, Reference]:
    """Returns a texture and the same one for the reference."""
    shapes = [shape_of(kind, size, level) for level in range(levels)]
    tensors = [random_tensor(shape, format, seed + i) for i, shape in enumerate(shapes)]
    made = metalops.texture([t.to(device) for t in tensors], format, kind)
    texels = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        if kind in ("1d", "buffer"):
            plane = (1, 1, shape[-1])
        elif kind == "1d_array":
            plane = (shape[0], 1, shape[1])
        else:
            plane = (-1, *shape[-2:])
        count = int(np.prod(shape))
        plane = (count // (plane[1] * plane[2]), *plane[1:])
        texels.append(decoded(tensor.numpy(), format, plane))
    return made, Reference(kind, format, texels)


def random_places(kind: str, count: int, seed: int, spread: float = 1.6) -> list[list[float]]:
    """Returns coordinates in and around a texture, edges and centres of texels among them."""
    generator = random.Random(seed)
    axes = {"1d": 1, "1d_array": 1, "3d": 3}.get(kind, 3 if kind.startswith("cube") else 2)

    def coordinate() -> float:
        if generator.random() < 0.25:
            return generator.choice((0.0, 1.0, -1.0, 0.5, 0.25, 2.0, -0.5, 1.25))
        return generator.uniform(-spread, 1 + spread)

    places = [[float(np.float32(coordinate())) for _ in range(axes)] for _ in range(count)]
    if kind.startswith("cube"):
        places = [p if any(p) else [1.0, 0.5, 0.25] for p in places]
    return places
