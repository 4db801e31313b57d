"""Products of tiles for our kernels: kernels/common/matmul.h."""

from pathlib import Path

import metalops
import pytest
import torch
from metalops.msl.flatten import flatten_text

ROOT = Path(__file__).parents[3]
HEADERS = [ROOT, ROOT / "python/metalops/include"]

SOURCE = """
#include <metal_stdlib>
#include <kernels/common/matmul.h>
using namespace metal;
namespace matmul = metalops::matmul;
namespace formats = metalops::formats;

// scale * sum + residual
struct scale_and_add {
  device float* result;
  device const float* residual;
  float scale;
  int columns;
  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    const int at = row * columns + column;
    result[at] = scale * sums.of[0] + residual[at];
  }
};

typedef matmul::Tile<TILE> Tile;

template <typename T, typename Format, typename Scale>
kernel void quantized(device float* result, device const float* residual, device const T* left,
                      device const uchar* codes, device const Scale* scales, constant int* sizes,
                      uint2 tile [[threadgroup_position_in_grid]],
                      uint index [[thread_index_in_threadgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]]) {
  const int rows = sizes[0], columns = sizes[1], inner = sizes[2], group = sizes[3];
  typedef matmul::Quantized<T, Format, Scale> Right;
  threadgroup T workspace[matmul::workspace<Tile, Right>()];
  const matmul::Dense<T> a{left, inner, false};
  const Right b{codes, scales, inner * Format::bits / 8, inner / group, group};
  const scale_and_add epilogue{result, residual, 0.5f, columns};
  const matmul::Place place{index, simdgroup, lane};
  matmul::multiply_tile<Tile>(a, b, matmul::Sizes{rows, columns, inner}, epilogue, workspace, tile,
                              place);
}

template <typename T, typename Format, typename Scale>
kernel void skinny(device float* result, device const float* residual, device const T* left,
                     device const uchar* codes, device const Scale* scales, constant int* sizes,
                     uint2 tile [[threadgroup_position_in_grid]],
                     uint lane [[thread_index_in_simdgroup]]) {
  const int rows = sizes[0], columns = sizes[1], inner = sizes[2], group = sizes[3];
  const matmul::Dense<T> a{left, inner, false};
  const matmul::Quantized<T, Format, Scale> b{codes, scales, inner * Format::bits / 8,
                                              inner / group, group};
  const scale_and_add epilogue{result, residual, 0.5f, columns};
  matmul::multiply_skinny<2, 4, 1>(a, b, matmul::Sizes{rows, columns, inner}, epilogue,
                                     tile.y * 2, tile.x * 4, lane);
}

#define REGISTER_KERNEL(NAME, ...)                                                      \\
  template [[host_name(#NAME "_kernel")]] kernel void NAME<TYPE, formats::FORMAT, SCALE>( \\
      device float*, device const float*, device const TYPE*, device const uchar*,       \\
      device const SCALE*, constant int*, uint2, __VA_ARGS__)

REGISTER_KERNEL(quantized, uint, uint, uint);
REGISTER_KERNEL(skinny, uint);
"""
DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}
FORMATS = {"int4": 4, "int8": 8, "e2m1": 4, "e4m3": 8, "e5m2": 8}  # and their bits
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def library(language, tile, element, number_format, scale):
    defined = {
        "TILE": ", ".join(map(str, tile)),
        "TYPE": element,
        "FORMAT": number_format,
        "SCALE": scale,
    }
    text = "".join(f"#define {name} {value}\n" for name, value in defined.items()) + SOURCE
    return metalops.compile_shader(flatten_text(text, HEADERS), language=language)


def decoded(codes, number_format):
    """The values of codes, uint8, in float32."""
    if number_format == "int4":
        return ((codes & 15) ^ 8).float() - 8
    if number_format == "int8":
        return codes.view(torch.int8).float()
    if number_format == "e2m1":
        return _E2M1[(codes & 7).long()] * torch.where(codes & 8 != 0, -1.0, 1.0)
    return codes.view(
        {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[number_format]
    ).float()


def operands(rows, columns, inner, group, number_format, element, scale):
    """left, codes, scales and residual, and what scale_and_add makes of their product."""
    generator = torch.Generator().manual_seed(0)
    dtype, bits = DTYPES[element], FORMATS[number_format]
    left = torch.randn(rows, inner, generator=generator).to(dtype)
    codes = torch.randint(0, 2**bits, (columns, inner), generator=generator, dtype=torch.uint8)
    values = decoded(codes, number_format)
    # Neither NaN nor infinity, nor what half does not hold once it is scaled.
    codes[~(values.abs() <= 448)] = 0
    values = decoded(codes, number_format)
    if scale == "formats::e8m0":
        scales = torch.randint(115, 127, (columns, inner // group), generator=generator)
        scales = scales.to(torch.uint8)
        factors = torch.exp2(scales.float() - 127)
    else:
        scales = torch.rand(columns, inner // group, generator=generator) / values.abs().max()
        scales = scales.to(dtype)
        factors = scales.float()
    residual = torch.randn(rows, columns, generator=generator)
    packed = codes
    if bits == 4:
        pairs = codes.view(columns, inner // 2, 2)
        packed = pairs[..., 0] | pairs[..., 1] << 4
    right = (values * factors.repeat_interleave(group, 1)).to(dtype)
    expected = 0.5 * (left.double() @ right.double().t()) + residual
    return [residual, left, packed, scales], expected


def launch(kernel, tensors, rows, columns, sizes, threads, group_size):
    result = torch.full((rows, columns), torch.nan, device="mps")
    arguments = [x.to("mps") for x in (*tensors, torch.tensor(sizes, dtype=torch.int32))]
    kernel(result, *arguments, threads=threads, group_size=group_size)
    return result.cpu().double()


@pytest.mark.sampled(18)
@pytest.mark.parametrize(
    ("element", "scale"),
    [*[(element, element) for element in DTYPES], ("half", "formats::e8m0")],
    ids=str,
)
@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("language", ["3.1", "4.0"])
def test_quantized_weights_with_scales_and_an_epilogue(language, number_format, element, scale):
    rows, columns, inner, group = 37, 70, 96, 32
    tensors, expected = operands(rows, columns, inner, group, number_format, element, scale)
    shaders = library(language, (16, 64, 1, 4), element, number_format, scale)
    sizes = [rows, columns, inner, group]
    tiles = {"threads": (2 * 128, 3), "group_size": (128, 1)}
    actual = launch(shaders.quantized_kernel, tensors, rows, columns, sizes, **tiles)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-3)
    few = {"threads": (18 * 32, 19), "group_size": (32, 1)}
    actual = launch(shaders.skinny_kernel, tensors, rows, columns, sizes, **few)
    # Each code is rounded to the dtype once it is scaled, as where tiles are brought.
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("tile", [(32, 32, 2, 2), (16, 32, 1, 1), (64, 32, 4, 1)], ids=str)
@pytest.mark.parametrize("language", ["3.1", "4.0"])
def test_tiles_of_other_sizes_and_an_inner_dimension_that_ends_within_a_block(language, tile):
    rows, columns, inner, group = 65, 33, 50, 10
    tensors, expected = operands(rows, columns, inner, group, "int8", "float", "float")
    down, across = -(-rows // tile[0]), -(-columns // tile[1])
    size = 32 * tile[2] * tile[3]
    actual = launch(
        library(language, tile, "float", "int8", "float").quantized_kernel,
        tensors,
        rows,
        columns,
        [rows, columns, inner, group],
        threads=(across * size, down),
        group_size=(size, 1),
    )
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


DECODED = """
#include <metal_stdlib>
#include <kernels/common/number_formats.h>
using namespace metal;
kernel void decode(device float* out, uint code [[thread_position_in_grid]]) {
  out[code] = metalops::formats::FORMAT::decode(code);
}
kernel void scales(device float* out, device const metalops::formats::e8m0* scales,
                   uint code [[thread_position_in_grid]]) {
  const metalops::formats::e8m0 scale = scales[code];
  out[code] = metalops::formats::scale_of(scale);
}
"""


def test_every_code_of_every_format():
    for name, bits in FORMATS.items():
        text = f"#define FORMAT {name}\n{DECODED}"
        shader = metalops.compile_shader(flatten_text(text, HEADERS), language="3.1")
        out = torch.zeros(2**bits, device="mps")
        shader.decode(out, threads=2**bits)
        expected = decoded(torch.arange(2**bits).to(torch.uint8), name)
        torch.testing.assert_close(out.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    codes = torch.arange(256).to(torch.uint8)
    out = torch.zeros(256, device="mps")
    shader.scales(out, codes.to("mps"))
    expected = codes.view(torch.float8_e8m0fnu).float()
    torch.testing.assert_close(out.cpu(), expected, rtol=0, atol=0, equal_nan=True)
