"""Launches of the kernels of <metalops/crossed_tiles.h>, tiled transposes for elementwise operators: which launches use
them, and their arguments."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

# As in the header.
ELEMENTS = 16  # of a thread
_DIMENSIONS = 6

_SIDES = (64, 32)
_MOST_OPERANDS = 12  # whose layout still fits in a launch
_FEWEST_THREADS = 2**14  # fewer would leave most of a GPU idle
_LEAST_SHARE = 0.5  # of a launch's positions that have elements
_MOST_OFFSET = 2**32 - 1

_OPERAND = struct.Struct(f"<{_DIMENSIONS}q2I")
_HEAD = struct.Struct(f"<5I{_DIMENSIONS}I4x")

# A dimension: its size and the operands' strides, in elements.
Dimension = tuple[int, Sequence[int]]


class Kernel(NamedTuple):
    """The parameters of a kernel. side: of a tile. outputs: how many of the operands, the first ones, are written.
    crosses: for each operand, true if adjacent elements are contiguous along the rows. packs: for each operand, the
    vector width of its loads or stores; it is the same for all outputs."""

    side: int
    outputs: int
    crosses: tuple[bool, ...]
    packs: tuple[int, ...]


class Tiles(NamedTuple):
    """A launch: its kernel, the layout, and the threads of all groups and of one."""

    kernel: Kernel
    layout: bytes
    grid: int
    group: int


def rows_of(dimensions: Sequence[Dimension]) -> int:
    """Returns the dimension along which most of those operands are contiguous that are not so along the first, of
    several the longest; 0 for none.

    dimensions: the results' fastest first.
    """
    lie_along = [0] * len(dimensions)
    for operand in range(len(dimensions[0][1])):
        lie_along[_lies_along(dimensions, operand)] += 1
    if not any(lie_along[1:]):
        return 0
    return max(range(1, len(dimensions)), key=lambda d: (lie_along[d], dimensions[d][0]))


def tiles(
    dimensions: Sequence[Dimension], outputs: int, element_bytes: int, is_aligned: bool
) -> Tiles | None:
    """Returns the launch for operands some of which are transposed relative to the others; None where other kernels are
    as good.

    outputs: how many of the operands, the first ones, are written. element_bytes: of the largest element. is_aligned:
    true if all begin at multiples of 16 bytes.
    """
    operands = range(len(dimensions[0][1]))
    along_rows = rows_of(dimensions)
    if not along_rows or len(operands) > _MOST_OPERANDS or len(dimensions) > 2 + _DIMENSIONS:
        return None
    columns, rows = dimensions[0], dimensions[along_rows]
    others = [d for i, d in enumerate(dimensions) if i not in (0, along_rows)]
    sides = [n for n in _SIDES if n * element_bytes <= 256]
    # The largest, unless a larger share of the positions of smaller ones have elements.
    side = max(sides, key=lambda n: round(_share(columns[0], n) * _share(rows[0], n), 3))
    if _share(columns[0], side) * _share(rows[0], side) < _LEAST_SHARE:
        return None
    column_tiles, row_tiles = -(-columns[0] // side), -(-rows[0] // side)
    groups = column_tiles * row_tiles
    for size, _ in others:
        groups *= size
    threads = side * side // ELEMENTS
    if not _FEWEST_THREADS <= groups * threads <= _MOST_OFFSET:
        return None
    for column, row in zip(columns[1], rows[1], strict=True):
        if (columns[0] - 1) * column + (rows[0] - 1) * row > _MOST_OFFSET:
            return None

    most = 4 if element_bytes <= 4 else 2

    def pack(operand: int, along: int) -> int:
        strides = [s[operand] for i, (_, s) in enumerate(dimensions) if i != along]
        size, own = dimensions[along]
        is_pack = is_aligned and own[operand] == 1 and not any(n % most for n in (size, *strides))
        return most if is_pack else 1

    own = min(pack(i, 0) for i in range(outputs))
    crosses = tuple(i >= outputs and _lies_along(dimensions, i) == along_rows for i in operands)
    packs = tuple(
        own if i < outputs else pack(i, along_rows) if crosses[i] else min(own, pack(i, 0))
        for i in operands
    )
    layout = b""
    for i in operands:
        strides = [s[i] for _, s in others] + [0] * (_DIMENSIONS - len(others))
        layout += _OPERAND.pack(*strides, columns[1][i], rows[1][i])
    sizes = [n for n, _ in others] + [1] * (_DIMENSIONS - len(others))
    layout += _HEAD.pack(columns[0], rows[0], column_tiles, row_tiles, len(others), *sizes)
    return Tiles(Kernel(side, outputs, crosses, packs), layout, groups * threads, threads)


def _share(size: int, side: int) -> float:
    return size / (-(-size // side) * side)


def _lies_along(dimensions: Sequence[Dimension], operand: int) -> int:
    """Returns the dimension of an operand's smallest stride; the first if all its strides are 0."""
    steps = [(strides[operand], d) for d, (_, strides) in enumerate(dimensions)]
    return min((s for s in steps if s[0] > 0), default=(0, 0))[1]
