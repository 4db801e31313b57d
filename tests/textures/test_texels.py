"""Reads and writes of single texels, in every format and kind of texture, against the bits that the formats define."""

import math

import metalops
import numpy as np
import pytest
import torch
from metalops._textures.formats import FORMATS

from .cases import DEVICE, random_tensor, random_texture
from .kernels import component_of, numbers_of, shader, texel_source
from .reference import codes_of, decoded, encode, texel_bytes

pytestmark = pytest.mark.full  # compiles several sources

COLORS = [name for name, f in FORMATS.items() if not f.is_depth]
# Corners of ranges, halves between codes, denormals, and what is beyond every range.
NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -3.0, 1e-8, -1e-8, 2e-5, 6e-8, 0.0031308, 0.04, 1 / 255, 0.5 / 255, 1.5 / 255, 2.5 / 127,
    0.5 / 31, 0.5 / 63, 0.5 / 15, 0.5 / 1023, 65000.0, 65504.0, 65519.0, 65520.0, 64512.0, 65024.0, 65300.0, 65408.0, 1e6, 3e38,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
INTEGERS = (0, 1, -1, 3, 4, 127, 128, -128, -129, 255, 256, 1023, 1024, 32767, 32768, -32768, -32769, 65535, 65536, 2**31 - 1, -(2**31))  # fmt: skip


def run(kernel, texture, values, places, level=0):
    places = torch.tensor(places, dtype=torch.int32).to(values.device)
    kernel(texture, values, places, level, threads=len(places))


@pytest.mark.parametrize("format", COLORS)
def test_reads_give_the_exact_values_of_a_format(format):
    tensor = random_tensor((32, 32), format, 1)
    if texel_bytes(format) == 1:
        tensor = torch.arange(256, dtype=torch.uint8).reshape(16, 16, 1)
    height, width = tensor.shape[:2]
    component = component_of(format)
    values = torch.zeros(
        width * height,
        4,
        dtype=torch.float32 if component == "float" else torch.int32,
        device=DEVICE,
    )
    places = [(i % width, i // width, 0, 0) for i in range(width * height)]
    run(
        shader(texel_source, "2d", component).read,
        metalops.texture(tensor.to(DEVICE), format),
        values,
        places,
    )
    wanted = torch.from_numpy(decoded(tensor.numpy(), format, (width * height,)))
    assert torch.equal(numbers_of(values, component), wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", COLORS)
def test_writes_round_and_clamp_to_a_format(format):
    component = component_of(format)
    if component == "float":
        generator = torch.Generator().manual_seed(2)
        rest = torch.rand(500, 4, generator=generator) * 1.2 - 0.1
        wide = torch.randn(500, 4, generator=generator) * torch.tensor([1.0, 1e-4, 1e3, 1.0])
        numbers = torch.tensor([[n, m, n, m] for n in NUMBERS for m in NUMBERS])
        values = torch.cat([numbers, rest, wide])
    else:
        values = torch.tensor([[n, m, n, m] for n in INTEGERS for m in INTEGERS]).to(torch.int32)
    texels = values.tolist()
    if component == "uint":
        texels = [[c % 2**32 for c in texel] for texel in texels]
    described = FORMATS[format]
    dtype = next(
        d
        for d in (torch.int8, torch.int16, torch.int32, torch.float16, torch.float32)
        if d in described.dtypes
    )
    tensor = torch.zeros(1, len(texels), described.per_texel, dtype=dtype, device=DEVICE)
    run(
        shader(texel_source, "2d", component).write,
        metalops.texture(tensor, format),
        values.to(DEVICE),
        [(i, 0, 0, 0) for i in range(len(texels))],
    )
    got = codes_of(tensor.cpu().numpy(), format)
    for texel, code in zip(texels, got, strict=True):
        wanted = encode(format, texel)
        if (
            any(c != c for c in texel) and "float" in format and format != "rgb9e5float"
        ):  # any NaN will do
            shape = np.array([int(code)], dtype=object), np.array([wanted], dtype=object)
            read = [decoded(_bytes(c[0], format), format, (1,)) for c in shape]
            assert np.array_equal(*read, equal_nan=True), texel
        else:
            assert int(code) == wanted, (texel, hex(int(code)), hex(wanted))


def test_srgb_codes_change_between_the_right_floats():
    """Whether the power of the compiler's library is right in its last place or not, no code depends on it."""
    numbers, wanted = [], []
    for code in range(1, 256):
        below, above = 0, int(np.float32(1).view(np.uint32))
        while above - below > 1:  # the first float that has the code
            middle = (below + above) // 2
            is_above = encode("r8unorm_srgb", [float(np.uint32(middle).view(np.float32))]) >= code
            below, above = (below, middle) if is_above else (middle, above)
        numbers += [float(np.uint32(bits).view(np.float32)) for bits in (below, above)]
        wanted += [code - 1, code]
    tensor = torch.zeros(1, len(numbers), dtype=torch.uint8, device=DEVICE)
    run(
        shader(texel_source, "2d", "float").write,
        metalops.texture(tensor, "r8unorm_srgb"),
        torch.tensor(numbers)[:, None].repeat(1, 4).to(DEVICE),
        [(i, 0, 0, 0) for i in range(len(numbers))],
    )
    assert tensor[0].tolist() == wanted


def _bytes(code: int, format: str) -> np.ndarray:
    return np.frombuffer(int(code).to_bytes(texel_bytes(format), "little"), dtype=np.uint8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind", ("1d", "1d_array", "2d", "2d_array", "3d", "cube", "cube_array", "buffer")
)
def test_every_texel_of_every_kind_and_level(kind):
    levels = 1 if kind in ("1d", "1d_array", "buffer") else 3
    texture, reference = random_texture(kind, "rgba16float", size=4, levels=levels)
    kernels = shader(texel_source, kind, "half")
    for level, texels in enumerate(reference.levels):
        slices, height, width, _ = texels.shape
        places, wanted = [], []
        for s in range(slices):
            for y in range(height):
                for x in range(width):
                    z = s % 6 if kind.startswith("cube") else s if kind == "3d" else 0
                    element = s // 6 if kind.startswith("cube") else 0 if kind == "3d" else s
                    places.append((x, y, z, element))
                    wanted.append(texels[s, y, x])
        # One step beyond each side; reads give 0 there, and writes do nothing.
        outside = [(width, 0, 0, 0), (2**32 - 1, 0, 0, 0)]
        if kind not in ("1d", "1d_array", "buffer"):
            outside += [(0, height, 0, 0)]
        if kind.endswith("array"):
            outside += [(0, 0, 0, reference.elements)]
        if kind in ("3d", "cube", "cube_array"):
            outside += [(0, 0, 6 if kind != "3d" else slices, 0), (0, 0, 2**31, 0)]
        places = [[c - 2**32 if c >= 2**31 else c for c in p] for p in places + outside]
        wanted = torch.tensor(np.array(wanted + [np.zeros(4)] * len(outside)))
        values = torch.full((len(places), 4), 7.0, device=DEVICE)
        run(kernels.read, texture, values, places, level)
        assert torch.equal(values.cpu().double(), wanted)
        before = [t.clone() for t in texture.levels]
        run(kernels.write, texture, values * 2, places, level)
        for number, (now, old) in enumerate(zip(texture.levels, before, strict=True)):
            assert torch.equal(now.cpu(), (old * 2 if number == level else old).cpu())


def test_levels_that_do_not_exist():
    texture, _ = random_texture("2d", "rgba32float", levels=2)
    values = torch.ones(1, 4, device=DEVICE)
    kernels = shader(texel_source, "2d")
    before = [t.clone() for t in texture.levels]
    run(kernels.write, texture, values, [(0, 0, 0, 0)], level=2)
    assert all(torch.equal(a, b) for a, b in zip(texture.levels, before, strict=True))
    run(kernels.read, texture, values, [(0, 0, 0, 0)], level=2)
    assert values.cpu().tolist() == [[0, 0, 0, 0]]


def test_textures_share_the_memory_of_views():
    base = torch.zeros(8, 9, 4, device=DEVICE)
    view = base[1:7:2, 2:7]
    values = torch.arange(60, dtype=torch.float32).reshape(15, 4)
    run(
        shader(texel_source, "2d").write,
        metalops.texture(view),
        values.to(DEVICE),
        [(i % 5, i // 5, 0, 0) for i in range(15)],
    )
    wanted = torch.zeros(8, 9, 4)
    wanted[1:7:2, 2:7] = values.reshape(3, 5, 4)
    assert torch.equal(base.cpu(), wanted)
