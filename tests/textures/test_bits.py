"""All devices compute the same bits. These are checksums of what the software device gives, with g++ and with clang; that it
is right shows in test_sampling.py. A new list is what `python -m tests.textures.test_bits` prints."""

import itertools
import random
import zlib

import metalops
import numpy as np
import pytest
import torch

from .cases import DEVICE, random_places, shape_of
from .kernels import depth_source, gradient_source, launch, sampling_source, shader

pytestmark = pytest.mark.full  # compiles several sources

COUNT = 64
ADDRESSES = ("clamp_to_edge", "clamp_to_border", "mirrored_repeat")
CHECKSUMS = {
    "sampled 1d": 0x4CB3E46E,
    "sampled 1d_array": 0x52D43A5F,
    "sampled 2d": 0x3B2321CC,
    "sampled 2d_array": 0xE8DB601B,
    "sampled 3d": 0x325B681C,
    "sampled cube": 0x88012465,
    "sampled cube_array": 0x40842BD7,
    "chosen_by_derivatives 2d": 0x95A63B88,
    "chosen_by_derivatives 2d_array": 0x29B42AD7,
    "chosen_by_derivatives 3d": 0xD2B53887,
    "chosen_by_derivatives cube": 0xF68AD2B8,
    "chosen_by_derivatives cube_array": 0x518719D1,
    "compared 2d": 0x529E9704,
    "compared 2d_array": 0x21D9A47D,
    "compared cube": 0xE2442B2D,
    "compared cube_array": 0x7AC88E52,
}


def texture_of(kind: str, format: str, levels: int = 1):
    """Returns a texture of the same bits everywhere, which torch's random numbers are not."""
    generator = random.Random(f"{kind} {format}")
    per_texel = 1 if format.startswith("depth") else 4
    tensors = []
    for level in range(levels):
        shape = (*shape_of(kind, 8, level), per_texel)
        size = int(np.prod(shape))
        if format.endswith("32float"):
            bits = np.frombuffer(generator.randbytes(2 * size), dtype=np.uint16)
            texels = torch.from_numpy(bits.astype(np.float32) / 65536)
        else:
            dtype = np.int16 if "16" in format else np.uint8
            bits = np.frombuffer(generator.randbytes(size * dtype().itemsize), dtype=dtype)
            texels = torch.from_numpy(bits.copy())
        tensors.append(texels.reshape(shape).to(DEVICE))
    return metalops.texture(tensors, format, kind)


def sampled(kind: str):
    places, elements = random_places(kind, COUNT, 9), [i % 4 for i in range(COUNT)]
    levels = 1 if kind.startswith("1d") else 3
    lods = [i % 9 * 0.3 - 0.2 for i in range(COUNT)]
    kernels = shader(sampling_source, kind)
    gathers = [name for name in dir(kernels) if name.startswith("gather")]
    for format in ("rgba32float", "rgba16unorm", "rgba8unorm_srgb"):
        texture = texture_of(kind, format, levels)
        for address, filter in itertools.product(ADDRESSES, ("nearest", "linear")):
            sampler = metalops.sampler(
                filter, address, mip_filter="linear" if levels > 1 else "none"
            )
            for name in ("sample", *gathers):
                kernel = getattr(kernels, name)
                yield launch(kernel, texture, sampler, places, elements, lods)


def chosen_by_derivatives(kind: str):
    generator = random.Random(kind)
    numbers = [[generator.random() * 2.0 ** -(i % 7) for i in range(6)] for _ in range(COUNT)]
    places, elements = random_places(kind, COUNT, 10), [i % 4 for i in range(COUNT)]
    sampler = metalops.sampler("linear", "repeat", mip_filter="linear")
    texture = texture_of(kind, "rgba32float", 3)
    kernel = shader(gradient_source, kind).sample
    yield launch(kernel, texture, sampler, places, elements, numbers)


def compared(kind: str):
    places, elements = random_places(kind, COUNT, 11), [i % 4 for i in range(COUNT)]
    references = [i / COUNT for i in range(COUNT)]
    texture = texture_of(kind, "depth32float")
    kernels = shader(depth_source, kind)
    sampler = metalops.sampler("linear", "repeat", compare_func="less")
    for name in ("sample", "sample_compare", "gather", "gather_compare"):
        yield launch(getattr(kernels, name), texture, sampler, places, elements, references)


KINDS = {
    sampled: ("1d", "1d_array", "2d", "2d_array", "3d", "cube", "cube_array"),
    chosen_by_derivatives: ("2d", "2d_array", "3d", "cube", "cube_array"),
    compared: ("2d", "2d_array", "cube", "cube_array"),
}


def checksum(results) -> int:
    value = 0
    for result in results:
        value = zlib.crc32(result.float().numpy().tobytes(), value)
    return value


@pytest.mark.parametrize(
    ("function", "kind"),
    [(function, kind) for function, kinds in KINDS.items() for kind in kinds],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.sampled(8)
def test_bits(function, kind):
    assert checksum(function(kind)) == CHECKSUMS[f"{function.__name__} {kind}"]


if __name__ == "__main__":
    for function, kinds in KINDS.items():
        for kind in kinds:
            print(f'    "{function.__name__} {kind}": 0x{checksum(function(kind)):08x},')
