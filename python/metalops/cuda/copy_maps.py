"""Maps of a launch's matrices for the GPU's copy engine: msl::abi::Maps of include/msl/cuda/copy_engine.h."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

from torch import Tensor

from . import driver

_MOST = 4
_MAP_BYTES = 128
_MATRIX = struct.Struct("<2Q2I")
_COUNT_AT = 2 * _MOST * _MAP_BYTES + _MOST * _MATRIX.size
MAPS_BYTES = (_COUNT_AT + 4 + 63) // 64 * 64


def of_launch(values: Sequence[object]) -> bytes:
    """Returns the maps of the first tensors among a launch's arguments that are matrices of 16-bit elements."""
    matrices = []
    for value in values:
        matrix = matrix_of(value) if isinstance(value, Tensor) else None
        if matrix is not None and matrix not in matrices and len(matrices) < _MOST:
            matrices.append(matrix)
    return _packed(tuple(matrices))


def matrix_of(tensor: Tensor) -> tuple[int, int, int, int] | None:
    """Returns the matrix that the memory of a tensor is, if it is one that the copy engine reads: its address, rows,
    columns, and the bytes between rows. Dimensions may have any order."""
    if tensor.element_size() != 2:
        return None
    sizes = _sizes(tensor.shape, tensor.stride())
    address = tensor.data_ptr()
    return (address, *sizes) if sizes is not None and address % 16 == 0 else None


@functools.lru_cache(maxsize=4096)
def _sizes(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int, int] | None:
    dimensions = sorted((t, n) for t, n in zip(strides, shape, strict=True) if n != 1)
    if len(dimensions) < 2 or dimensions[0][0] != 1 or 0 in shape:
        return None
    (_, columns), (stride, rows), *others = dimensions
    for apart, size in others:
        if apart != stride * rows:
            return None
        rows *= size
    stride *= 2
    if stride < 2 * columns or stride % 16 != 0 or rows * stride >= 2**36:
        return None
    return rows, columns, stride


@functools.lru_cache(maxsize=4096)
def _packed(matrices: tuple[tuple[int, int, int, int], ...]) -> bytes:
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
