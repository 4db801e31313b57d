"""Launches of kernels/spatial/convolution_packed.metal, of images whose channels are last: what csrc/ops/spatial/convolution_packed.mm
plans, for tensors of a GPU."""

import functools
import math
import struct
from pathlib import Path

import torch
from metalops.cuda.library import Library
from metalops.msl.source import languages

ROOT = Path(__file__).resolve().parents[2]
NAMES = {torch.float16: "half", torch.bfloat16: "bfloat", torch.float32: "float"}
PACKS = struct.Struct("<10q48i")
ROWS = 9  # kConvolutionRows


@functools.cache
def library(kernel):
    """A kernel of the file, by the end of its name."""
    source = (ROOT / "kernels/spatial/convolution_packed.metal").read_text()
    return Library(
        source,
        kernels=[f"convolution_packed_{kernel}"],
        include_dirs=[str(ROOT), str(ROOT / "python/metalops/include")],
        language=languages.number_of("4.0"),
    )


def launch(kernel, arguments, threadgroups, threads):
    library(kernel).launch(
        f"convolution_packed_{kernel}", arguments, threadgroups * threads, threads
    )


def images_of(images, counts, filters, first, step, move, groups):
    """A ConvolutionImages. Images have five dimensions, and all else is along the last three."""
    strides = images.stride()[2:]
    numbers = [images.shape[0], *counts, images.stride(0)]
    numbers += [a * b for a, b in zip(strides, step)]
    numbers += [*filters, *(a * b for a, b in zip(strides, move))]
    numbers += [sum(a * b for a, b in zip(strides, first)), *first, *step, *move]
    return [*numbers, *images.shape[2:], images.shape[1] // groups, groups]


def adjacent(result, is_split, are_rows):
    if is_split:
        return 2
    if result.dtype == torch.float32:
        return 1
    return 8 if result.stride(1) == 1 else ROWS if are_rows else 1


def multiply(kernel, tile, splits, result, images, other, of_images, of_result, numbers, bias=None):
    """numbers: of other.stride to inner. of_result: offsets and strides, then sizes, of rows and columns."""
    rows, columns, threads = tile
    stride, lines, group_stride, all_rows, all_columns, stored, inner = numbers
    groups = of_images[-1]
    of_split = -(-inner // splits // 64) * 64 if splits > 1 else -(-inner // 64) * 64
    splits = -(-inner // of_split)
    along_rows = kernel != "weight_" and result.stride(-1) == 1
    together = adjacent(result, splits > 1, along_rows)
    numbers = [
        stride, lines, group_stride, all_rows, all_columns, stored, inner, splits, of_split, int(bias is not None), together,
    ]  # fmt: skip
    packs = PACKS.pack(*of_result, *of_images, *numbers)
    sums = result
    if splits > 1:
        sums = torch.full(
            (splits, groups, all_rows, all_columns), float("nan"), device=result.device
        )
    name = NAMES[result.dtype]
    kernel = f"{kernel}{'split_' if splits > 1 else ''}{rows}x{columns}_{name}"
    bias = other if bias is None else bias
    threadgroups = -(-all_rows // rows) * -(-all_columns // columns) * groups * splits
    launch(kernel, [sums, images, other, bias, packs], threadgroups, threads)
    if splits > 1:
        parts = 8 if splits >= 16 else 1
        quads = all_rows * -(-all_columns // 4)
        arguments = [result, sums, bias, packs, struct.pack("i", parts)]
        launch(f"combine_{name}", arguments, -(-quads // (256 // parts)) * groups, 256)


def tile_of(columns):
    return (128, 64, 256) if columns <= 64 else (128, 128, 256)


def convolve(result, images, weight, taps, groups, by_columns, splits=1, bias=None):
    """The weight has channels of the result first, or with by_columns those of the images; its filters are beside its
    other channels, which are last. taps: those of images_of."""
    of_images = images_of(images, *taps, groups)
    channels = images.shape[1] // groups
    out, filters = result.shape[1] // groups, math.prod(taps[1])
    strides = result.stride()
    of_result = [0, out * strides[1], strides[0], *strides[2:], 0, 0, 0, strides[1]]
    of_result += [images.shape[0], *taps[0], 1, 1, 1, out]
    lines, stride = (channels, filters * out) if by_columns else (out, filters * channels)
    rows = images.shape[0] * math.prod(taps[0])
    numbers = (stride, lines * groups, lines * stride, rows, out, out, filters * channels)
    kernel = "columns_" if by_columns else ""
    multiply(
        kernel, tile_of(out), splits, result, images, weight, of_images, of_result, numbers, bias
    )


def convolve_weight(result, images, outputs, taps, groups, splits=1):
    of_images = images_of(images, *taps, groups)
    channels, out = images.shape[1] // groups, outputs.shape[1] // groups
    strides = result.stride()
    of_result = [0, out * strides[0], 0, 0, 0, strides[0], *strides[2:], strides[1]]
    of_result += [1, 1, 1, out, *taps[1], channels]
    inner = images.shape[0] * math.prod(taps[0])
    columns = math.prod(taps[1]) * channels
    numbers = (outputs.shape[1], inner, out, out, columns, channels, inner)
    tile = (64, 128, 128) if out <= 64 else (128, 128, 256)
    multiply("weight_", tile, splits, result, images, outputs, of_images, of_result, numbers)
