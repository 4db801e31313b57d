"""Maps of a launch's matrices for the GPU's copy engine: msl::abi::Maps of include/msl/cuda/copy_engine.h."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

from torch import Tensor

from . import driver
from .nvrtc import GatheredOperand

_MOST = 8
_MAP_BYTES = 128
_MATRIX = struct.Struct("<2Q2I")
_COUNT_AT = 2 * _MOST * _MAP_BYTES + _MOST * _MATRIX.size
MAPS_BYTES = (_COUNT_AT + 4 + 63) // 64 * 64

_UNIT = 2  # bytes, in which columns are counted
_SIZES = (1, 2, 4)  # of elements

Matrix = tuple[int, int, int, int]  # address, rows, columns in units, and the bytes between rows


def of_launch(values: Sequence[object]) -> bytes:
    """Returns the maps of a launch's arguments, those that are read first: of the first matrices that they are, before
    others those of 16-bit elements, which most operations copy."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    tensors.sort(key=lambda tensor: tensor.element_size() != _UNIT)
    matrices: list[Matrix] = []
    for tensor in tensors:
        matrices += [matrix for matrix in matrices_of(tensor) if matrix not in matrices]
    return _packed(tuple(matrices[:_MOST]))


def matrices_of(tensor: Tensor) -> list[Matrix]:
    """Returns the matrices that the memory of a tensor is and that operations copy. Dimensions may have any order.
    The first has rows of the contiguous dimension alone. Its rows may be those of several heads of each token, where the
    last dimension but one, or the first of three, counts tokens: then another has rows of tokens."""
    address, size = tensor.data_ptr(), tensor.element_size()
    if size not in _SIZES or address % 16 != 0:
        return []
    return [(address, *sizes) for sizes in _sizes(tensor.shape, tensor.stride(), size)]


@functools.lru_cache(maxsize=4096)
def _sizes(
    shape: tuple[int, ...], strides: tuple[int, ...], size: int
) -> tuple[tuple[int, int, int], ...]:
    """Returns rows, columns in units, and the bytes between rows, of each matrix of elements of a size."""
    dimensions = sorted((t, n) for t, n in zip(strides, shape, strict=True) if n != 1)
    if len(dimensions) < 2 or dimensions[0][0] != 1 or 0 in shape:
        return ()
    by_tokens = {strides[i] for i in (-2, 0) if i == -2 or len(shape) == 3}
    found = []
    columns = 1
    for i, (stride, _) in enumerate(dimensions):
        if i == 1 or (i > 1 and stride in by_tokens):
            rows = _adjacent(dimensions[i:], stride)
            width, apart = size * columns, size * stride
            is_copied = width % _UNIT == 0 and apart % 16 == 0 and rows * apart < 2**36
            if rows and columns <= stride and is_copied:
                found.append((rows, width // _UNIT, apart))
        if stride != columns:
            break  # elements of a row lie apart
        columns *= dimensions[i][1]
    return tuple(found)


def _adjacent(dimensions: Sequence[tuple[int, int]], stride: int) -> int:
    """Returns the number of indices of dimensions, each a stride and a size, if these are all so far apart; else 0."""
    count = 1
    for apart, size in dimensions:
        if apart != stride * count:
            return 0
        count *= size
    return count


@functools.lru_cache(maxsize=4096)
def _packed(matrices: tuple[Matrix, ...]) -> bytes:
    none = bytes(_MAP_BYTES * (_MOST - len(matrices)))
    maps = [
        b"".join(driver.copy_map(*matrix, box_rows) for matrix in matrices) + none
        for box_rows in (64, 16)
    ]
    rows = b"".join(
        _MATRIX.pack(address, stride, columns, rows) for address, rows, columns, stride in matrices
    )
    rows += bytes(_MATRIX.size * (_MOST - len(matrices)))
    return (b"".join(maps) + rows + struct.pack("<I", len(matrices))).ljust(MAPS_BYTES, b"\0")


# ---- gathered operands: include/msl/cuda/gathered_maps.h -----------------------------------------

_IMAGES = struct.Struct("<29i")
_GATHERED_MATRIX = struct.Struct("<2i")
_BOX = 64  # channels of a copy
_MOST_STEP = 8
# The bounds of corners, and the largest distance of two taps, of images with a depth and without.
_CORNERS = {5: (-16, 15), 4: (-128, 127)}
_MOST_TAP = {5: 31, 4: 255}


def of_gathered(operands: Sequence[GatheredOperand], values: Sequence[object]) -> bytes:
    """Returns the maps of a launch's gathered operands; those of which the copy engine would not read the same have
    none."""
    described = []
    for operand in operands:
        if max(operand.buffer, operand.parameters) >= len(values):
            continue  # the launch says what is missing
        value, parameters = values[operand.buffer], values[operand.parameters]
        address = value.data_ptr() if isinstance(value, Tensor) else value
        if not isinstance(parameters, bytes) or not isinstance(address, int) or address % 16 != 0:
            continue
        size = (_IMAGES, _GATHERED_MATRIX)[operand.kind].size
        described.append(
            (
                operand.number,
                operand.kind,
                address,
                parameters[operand.offset : operand.offset + size],
            )
        )
    return _gathered(tuple(described))


@functools.lru_cache(maxsize=4096)
def _gathered(described: tuple[tuple[int, int, int, bytes], ...]) -> bytes:
    maps = {}
    bits = 0
    for number, kind, address, description in described:
        if kind == 1:
            stride, lines = _GATHERED_MATRIX.unpack(description)
            if stride * _UNIT % 16 == 0 and stride > 0 and lines > 0:
                maps[number] = driver.copy_map(address, lines, stride, stride * _UNIT, 64)
        else:
            images = _images(description)
            if images is not None:
                maps[number] = driver.copy_map_of_images(address, *images)
                bits |= (len(images[0]) == 5) << (8 + number)
    bits |= sum(1 << number for number in maps)
    none = bytes(_MAP_BYTES)
    first = b"".join(maps.get(number, none) for number in range(_MOST))
    return first.ljust(_COUNT_AT, b"\0") + struct.pack("<2I", 0, bits).ljust(
        MAPS_BYTES - _COUNT_AT, b"\0"
    )


Images = tuple[list[int], list[int], list[int], list[int], list[int]]


def _images(description: bytes) -> Images | None:
    """Returns the arguments of driver.copy_map_of_images for an abi::GatheredImages; None if the copy engine cannot
    read them."""
    numbers = iter(_IMAGES.unpack(description))

    def take(count: int) -> list[int]:
        return [next(numbers) for _ in range(count)]

    sizes, strides, taps, tap_strides = take(4), take(4), take(3), take(3)
    (begin,), first, step, move, limits = take(1), take(3), take(3), take(3), take(3)
    channels, groups = take(2)
    if min(*sizes, *taps, *limits, groups) < 1 or channels % _BOX != 0 or channels == 0:
        return None
    apart = [channels * groups]  # of pixels along width, height and depth, and of images
    for size in reversed(limits):
        apart.append(apart[-1] * size)
    within = apart[2::-1]
    is_so = begin == sum(a * b for a, b in zip(first, within, strict=True))
    is_so &= sizes[0] == 1 or strides[0] == apart[3]
    for d in range(3):
        is_so &= sizes[1 + d] == 1 or strides[1 + d] == step[d] * within[d]
        is_so &= taps[d] == 1 or tap_strides[d] == move[d] * within[d]
    is_deep = limits[0] > 1 or taps[0] > 1 or sizes[1] > 1 or first[0] != 0
    rank = 5 if is_deep else 4
    least, most = _CORNERS[rank]
    lower, upper = [], []
    for d in range(2, 4 - rank, -1):
        reach = (taps[d] - 1) * move[d]
        low = first[d] + min(0, reach)
        high = low + (sizes[1 + d] - 1) * step[d] - (limits[d] - 1)
        lower.append(low)
        upper.append(high)
        is_so &= least <= low <= most and least <= high <= most
        is_so &= abs(reach) <= _MOST_TAP[rank] and 1 <= step[d] <= _MOST_STEP
    if not is_so or apart[3] * sizes[0] * _UNIT >= 2**36:
        return None
    dims = rank - 2
    lengths = [channels * groups, *limits[: -dims - 1 : -1], sizes[0]]
    bytes_apart = [_UNIT * n for n in (*apart[:dims], apart[3])]
    return lengths, bytes_apart, lower, upper, step[: -dims - 1 : -1]
