"""The arguments of a call as they were before it: copies on the CPU with the layout of each tensor, and with the memory
that several of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import negative_view, pytree

# Memories begin at multiples of this many bytes in their storages, so that every dtype is aligned in them.
_ALIGNMENT = 16


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor in a memory of a snapshot. offset: in elements, from the begin of the memory. device: its type, "mps" or
    "cpu". storage_offset: in the storage of the program."""

    memory: int
    offset: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    storage_offset: int
    is_conj: bool = False
    is_neg: bool = False

    def on(self, memory: Tensor) -> Tensor:
        """Returns the tensor in a memory, which is a tensor of bytes on any device."""
        x = torch.empty(0, dtype=self.dtype, device=memory.device)
        x.set_(memory.untyped_storage(), self.offset, self.sizes, self.strides)
        if self.is_conj:
            x = x.conj()
        return negative_view(x) if self.is_neg else x


def tensors_of(tree: Any) -> list[Tensor]:
    """Returns the tensors of a tree of arguments or results, in their order."""
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def extent(x: Tensor) -> tuple[int, int]:
    """Returns the first byte of a tensor in its storage, and the one after its last."""
    size = x.element_size()
    begin = x.storage_offset() * size
    if x.numel() == 0:
        return begin, begin
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride()))
    return begin, begin + (last + 1) * size


def _storage_of(x: Tensor) -> tuple[str, int]:
    return x.device.type, x.untyped_storage().data_ptr()


def bytes_of(x: Tensor, begin: int, end: int) -> Tensor:
    """Returns a view of bytes of a tensor's storage."""
    view = torch.empty(0, dtype=torch.uint8, device=x.device)
    return view.set_(x.untyped_storage(), begin, (end - begin,), (1,))


class Snapshot:
    """The arguments of a call. tree: them, with a Place for each tensor. memories: bytes on the CPU."""

    def __init__(self, tree: Any, memories: list[Tensor]) -> None:
        self.tree = tree
        self.memories = memories

    @property
    def bytes(self) -> int:
        return sum(memory.numel() for memory in self.memories)

    @property
    def places(self) -> list[Place]:
        return [x for x in pytree.tree_leaves(self.tree, _is_place) if _is_place(x)]

    def on_cpu(self, *, fresh: bool = True) -> Any:
        """Returns the arguments with tensors on the CPU. fresh: in copies of the memories, for a call that writes."""
        memories = [m.clone() for m in self.memories] if fresh else self.memories
        return self._filled(memories)

    def on_devices(self) -> Any:
        """Returns the arguments with each tensor on its device, in new memories."""
        kinds = {place.memory: place.device for place in self.places}
        return self._filled(
            [m.clone().to(kinds.get(i, "cpu")) for i, m in enumerate(self.memories)]
        )

    def _filled(self, memories: list[Tensor]) -> Any:
        def fill(x: Any) -> Any:
            return x.on(memories[x.memory]) if _is_place(x) else x

        return pytree.tree_map(fill, self.tree, is_leaf=_is_place)


def _is_place(x: Any) -> bool:
    return isinstance(x, Place)


def extents(tree: Any) -> dict[tuple[str, int], list]:
    """Returns for each storage of a tree's tensors [one of them, its first byte that they use, the one after the last]."""
    spans: dict[tuple[str, int], list] = {}
    for x in tensors_of(tree):
        begin, end = extent(x)
        begin -= begin % _ALIGNMENT
        span = spans.setdefault(_storage_of(x), [x, begin, end])
        span[1:] = min(span[1], begin), max(span[2], end)
    return spans


def size(tree: Any) -> int:
    """Returns how many bytes a snapshot of a tree has."""
    return sum(end - begin for _, begin, end in extents(tree).values())


def snapshot(tree: Any) -> Snapshot:
    """Copies a tree of arguments. Its tensors are strided."""
    spans = extents(tree)
    numbers = {storage: i for i, storage in enumerate(spans)}
    memories = [_copied(x, begin, end) for x, begin, end in spans.values()]

    def place(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        storage = _storage_of(x)
        offset = x.storage_offset() - spans[storage][1] // x.element_size()
        return Place(
            numbers[storage],
            offset,
            x.dtype,
            tuple(x.shape),
            x.stride(),
            x.device.type,
            x.storage_offset(),
            x.is_conj(),
            x.is_neg(),
        )

    return Snapshot(pytree.tree_map(place, tree), memories)


def _copied(x: Tensor, begin: int, end: int) -> Tensor:
    """Returns a copy of bytes of a tensor's storage, on the CPU."""
    view = bytes_of(x, begin, end)
    return view.clone() if x.device.type == "cpu" else view.cpu()


def named(schema: torch.FunctionSchema, args: tuple, kwargs: dict[str, Any]) -> Iterator:
    """Yields (argument of the schema, its value) for those that a call passes."""
    arguments = schema.arguments
    yield from zip(arguments, args)
    for argument in arguments[len(args) :]:
        if argument.name in kwargs:
            yield argument, kwargs[argument.name]
