"""Elementwise kernels on CUDA tensors: those that metal_text writes without torch's classes, one of four for the layout
of the operands. Functors and operators of metalops.ops run through them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from ..compile import compile_library
from ..dtypes import METAL_TYPES
from . import crossed_tiles

_MOST_THREADS = (
    2**32 - 4
)  # of a grid in one dimension: kernels count on to the next multiple of four
_MOST_DIMENSIONS = 16
_WARP = 32
_LONG = 4 * _WARP  # a row of which a thread takes four elements
_KEPT = 1024
_NUMBERS = {
    bool: struct.Struct("?").pack,
    int: struct.Struct("q").pack,
    float: struct.Struct("f").pack,
}


class _Plan(NamedTuple):
    """The launch for one set of layouts. layout: the last arguments."""

    library: object
    kernel: str
    layout: list[bytes]
    grid: tuple[int, ...]
    group: tuple[int, ...]


class Launcher:
    """Computes the results of an operator, or its gradients.

    called: its name in errors. name: that of the kernels without their endings. source: returns their Metal text for
    inputs of a Metal type, with crossed= that of a kernel of crossed_tiles.py alone. kinds: the types of the scalars.
    has_mask: true if the kernels take a mask of the wanted results; all are.
    """

    def __init__(
        self,
        called: str,
        name: str,
        source: Callable[..., str],
        kinds: Sequence[type],
        has_mask: bool,
    ):
        self._called = called
        self._name = name
        self._source = source
        self._packs: list[Callable] = [_NUMBERS[kind] for kind in kinds]
        self._has_mask = has_mask
        self._plans: dict[tuple, _Plan] = {}

    def __call__(self, outputs: list[Tensor], inputs: list[Tensor], scalars: list[complex]) -> None:
        """Launches the kernel. outputs: all of one shape, dtype and layout. inputs: of one dtype; they broadcast to the
        outputs."""
        shape = outputs[0].shape
        inputs = [x if x.shape == shape else x.expand(shape) for x in inputs]
        tensors = [*outputs, *(x.resolve_conj().resolve_neg() for x in inputs)]
        is_aligned = not any([x.data_ptr() % 16 for x in tensors])
        key = (shape, inputs[0].dtype, is_aligned, *[x.stride() for x in tensors])
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _KEPT:
                self._plans.clear()
            plan = self._plans[key] = self._plan(tensors, len(outputs), is_aligned)
        numbers = [pack(value) for pack, value in zip(self._packs, scalars, strict=True)]
        if self._has_mask:
            numbers.append(struct.pack("q", (1 << len(outputs)) - 1))
        arguments = [*tensors, *numbers, *plan.layout]
        plan.library.launch(plan.kernel, arguments, plan.grid, plan.group)

    def _plan(self, tensors: list[Tensor], outputs: int, is_aligned: bool) -> _Plan:
        element = METAL_TYPES[tensors[outputs].dtype]
        dimensions = _dimensions(tensors)
        bytes_each = [x.element_size() for x in tensors]
        inner = dimensions[0][0]
        outer = tensors[0].numel() // inner
        strides = [list(s) for s in zip(*(s for _, s in dimensions), strict=True)]
        is_side_by_side = all(s[0] == 1 for s in strides)
        if max(inner, outer) > _MOST_THREADS:
            raise RuntimeError(
                f"{self._called}: tensors of shape {list(tensors[0].shape)} are too large for one launch"
            )
        if is_side_by_side and is_aligned and inner % 4 == 0:
            steps = [s[1:] for s in strides]
            if len(dimensions) == 1:
                return self._planned("four", element, [], (inner // 4,))
            if len(dimensions) == 2 and not any(step % 4 for (step,) in steps):
                rows = struct.pack(f"{len(tensors)}q", *(step // 4 for (step,) in steps))
                return self._planned("fourrows", element, [rows], (inner // 4, outer))
        tiles = crossed_tiles.tiles(dimensions, outputs, max(bytes_each), is_aligned)
        if tiles is not None:
            library = self._library(element, tiles.kernel)
            kernel = f"{self._name}_crossed_{element}"
            return _Plan(library, kernel, [tiles.layout], (tiles.grid,), (tiles.group,))
        if len(dimensions) > _MOST_DIMENSIONS:
            raise RuntimeError(
                f"{self._called}: kernels take tensors of at most {_MOST_DIMENSIONS} dimensions"
            )
        sizes, along = [n for n, _ in dimensions], 0
        if inner < _LONG and len(sizes) > 1:
            along = max(range(1, len(sizes)), key=sizes.__getitem__)
        end = sizes[along]
        sizes[along] = -(-end // 4)
        steps = [n * size for s, size in zip(strides, bytes_each, strict=True) for n in s]
        layout = [
            struct.pack(f"{len(sizes) + 3}q", *sizes, along, sizes[along], end),
            struct.pack(f"{len(steps)}q", *steps),
            struct.pack("I", len(sizes)),
        ]
        # Tall groups use whole cache lines across rows, too.
        columns = _WARP if crossed_tiles.rows_of(dimensions) else None
        grid = sizes[0], math.prod(sizes[1:])
        return self._planned("fourstrided", element, layout, grid, columns)

    def _planned(
        self,
        variant: str,
        element: str,
        layout: list[bytes],
        grid: tuple[int, ...],
        columns: int | None = None,
    ) -> _Plan:
        """columns: the maximum of a group."""
        from ...cuda.function import USUAL_GROUP, group_within

        group = group_within((min(grid[0], columns or USUAL_GROUP), *grid[1:]), USUAL_GROUP)
        kernel = f"{self._name}_{variant}_{element}"
        return _Plan(self._library(element), kernel, layout, grid, group)

    def _library(self, element: str, crossed: crossed_tiles.Kernel | None = None):
        from ...cuda.library import Library

        text = self._source(element, crossed=crossed)
        return compile_library(f"{self._called} for {element}", text, Library)


def _dimensions(tensors: list[Tensor]) -> list[tuple[int, tuple[int, ...]]]:
    """Returns sizes and the tensors' strides, in elements, the first tensor's smallest stride first. Dimensions that
    are contiguous with each other in all tensors are merged."""
    shape = tensors[0].shape
    order = sorted(range(len(shape)), key=lambda d: (tensors[0].stride(d), -d))
    result: list[tuple[int, tuple[int, ...]]] = []
    for d in order:
        if shape[d] == 1:
            continue
        strides = tuple(x.stride(d) for x in tensors)
        if result:
            size, before = result[-1]
            if all(s == size * b for s, b in zip(strides, before, strict=True)):
                result[-1] = size * shape[d], before
                continue
        result.append((shape[d], strides))
    return result or [(1, (1,) * len(tensors))]
