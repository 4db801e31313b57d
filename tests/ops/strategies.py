"""Random operands for hypothesis: tensors of any shape and layout, written as the call that makes them, so that a case
that fails can be run as it is printed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import hypothesis.strategies as st
import torch
from metalops.testing import make

MOST_DIMENSIONS = 6
MOST_ELEMENTS = 3000


@dataclass(frozen=True)
class Operand:
    """A view of a random 1-d tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    low: float
    high: float
    seed: int

    @property
    def extent(self) -> int:
        """How many elements the storage needs."""
        return self.offset + storage_extent(self.shape, self.strides)

    def tensor(self) -> torch.Tensor:
        """On the CPU."""
        storage = make((self.extent,), self.dtype, low=self.low, high=self.high, seed=self.seed)
        return storage.as_strided(self.shape, self.strides, self.offset)

    def __repr__(self) -> str:
        return (
            f"make(({self.extent},), {self.dtype}, low={self.low}, high={self.high}, seed={self.seed})"
            f".as_strided({self.shape}, {self.strides}, {self.offset})"
        )

    def _repr_pretty_(self, printer, cycle) -> None:  # what hypothesis prints
        printer.text(repr(self))


def storage_extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def sizes() -> st.SearchStrategy[int]:
    # 28 and 33: not a whole number of simdgroups. 1025: more than one threadgroup.
    return st.one_of(st.integers(0, 5), st.sampled_from((28, 33, 1025)))


def shapes(even_last: bool = False) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of 0 to 6 dimensions; even_last: of at least one, the last of which has even size."""
    result = st.lists(sizes(), min_size=int(even_last), max_size=MOST_DIMENSIONS).map(tuple)
    if even_last:
        result = result.map(lambda shape: (*shape[:-1], 2 * shape[-1]))
    # Not the product alone: what is broadcast to an empty shape need not be empty.
    return result.filter(lambda shape: math.prod(max(size, 1) for size in shape) <= MOST_ELEMENTS)


@st.composite
def strides(draw, shape: tuple[int, ...], overlapping: bool) -> tuple[int, ...]:
    """Any order of the dimensions and any gaps between elements. overlapping: elements may also share memory, as in an
    expanded tensor or a sliding window."""
    result = [0] * len(shape)
    next_free = 1
    widest = 3 if math.prod(shape) <= MOST_ELEMENTS else 1  # gaps in each dimension multiply
    for dimension in draw(_orders(len(shape))):
        step = draw(st.integers(1, widest))
        result[dimension] = next_free * step
        next_free = result[dimension] * max(shape[dimension] - 1, 0) + next_free
    if overlapping:
        for dimension in range(len(shape)):
            if draw(st.booleans()):
                result[dimension] = draw(st.integers(0, 4))
    return tuple(result)


def _orders(dimensions: int) -> st.SearchStrategy[list[int]]:
    """Orders in which dimensions may lie in memory, the fastest first; row-major is the simplest."""
    return st.permutations(range(dimensions)[::-1])


@st.composite
def operands(
    draw, shape: tuple[int, ...], dtype: torch.dtype, low: float, high: float, overlapping=True
) -> Operand:
    return Operand(
        shape,
        draw(strides(shape, overlapping)),
        draw(st.integers(0, 5)),
        dtype,
        low,
        high,
        draw(st.integers(0, 99)),
    )


@st.composite
def broadcast_shapes(draw, shape: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """`count` shapes, the first of which is `shape` and the others broadcast with it to something that is no larger
    than `shape`, but that dimensions of the first that are 1 may grow."""
    result = []
    for i in range(count):
        kept = shape[draw(st.integers(0, len(shape))) :] if i else shape
        result.append(tuple(1 if draw(st.booleans()) and i else size for size in kept))
    return list(draw(st.permutations(result)))
