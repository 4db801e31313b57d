"""Maps of a launch's matrices for the GPU's copy engine: msl::abi::Maps of include/msl/cuda/copy_engine.h."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

from torch import Tensor

from . import driver

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
