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

Matrix = tuple[int, int, int, int]  # address, rows, columns, and the bytes between rows


def of_launch(values: Sequence[object]) -> bytes:
    """Returns the maps of a launch's arguments, those that are read first: of the first matrices of 16-bit elements that
    they are."""
    matrices: list[Matrix] = []
    for value in values:
        if isinstance(value, Tensor):
            matrices += [matrix for matrix in matrices_of(value) if matrix not in matrices]
    return _packed(tuple(matrices[:_MOST]))


def matrices_of(tensor: Tensor) -> list[Matrix]:
    """Returns the matrices that the memory of a tensor is and that the copy engine reads. Dimensions may have any order.
    The first has rows of the contiguous dimension alone. Its rows may be those of several heads of each token, where the
    last dimension but one, or the first of three, counts tokens: then another has rows of tokens."""
    address = tensor.data_ptr()
    if tensor.element_size() != 2 or address % 16 != 0:
        return []
    return [(address, *sizes) for sizes in _sizes(tensor.shape, tensor.stride())]


@functools.lru_cache(maxsize=4096)
def _sizes(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Returns rows, columns, and the bytes between rows, of each matrix."""
    dimensions = sorted((t, n) for t, n in zip(strides, shape, strict=True) if n != 1)
    if len(dimensions) < 2 or dimensions[0][0] != 1 or 0 in shape:
        return ()
    by_tokens = {strides[i] for i in (-2, 0) if i == -2 or len(shape) == 3}
    found = []
    columns = 1
    for i, (stride, _) in enumerate(dimensions):
        if i == 1 or (i > 1 and stride in by_tokens):
            rows = _adjacent(dimensions[i:], stride)
            bytes_apart = 2 * stride
            if rows and columns <= stride and bytes_apart % 16 == 0 and rows * stride < 2**35:
                found.append((rows, columns, bytes_apart))
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
