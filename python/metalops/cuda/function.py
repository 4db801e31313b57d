"""A kernel that is loaded on a GPU, and what a launch of it passes.

A launch costs a few microseconds, so all that does not change from one to the next is kept: facts about the arguments, what
a grid becomes, and the memory from which the driver copies the parameters.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import driver

Value = Tensor | bytes | int | None

_MAX_BUFFERS = 31
_INLINE_BYTES = 1024
_MAX_BLOCKS = (2**31 - 1, 65535, 65535)
_ORDINARY_SHARED_BYTES = 48 * 1024  # more must be asked for
_KEPT = 1024  # grids

# msl::abi::Extent of include/msl/cuda/launch.h: grid, group, groups, is_flat.
_EXTENT = struct.Struct("<10I")
EXTENT_BYTES = _EXTENT.size
# msl::abi::Launch: an extent, a bit for each buffer in `bytes`, offsets of threadgroup memory, buffers, bytes.
_START = struct.Struct(f"<{EXTENT_BYTES}sI")
_OFFSETS_AT = _START.size
_BUFFERS_AT = _OFFSETS_AT + 4 * _MAX_BUFFERS
_BYTES_AT = _BUFFERS_AT + 8 * _MAX_BUFFERS
LAUNCH_BYTES = _BYTES_AT + _INLINE_BYTES


@dataclass(frozen=True)
class Argument:
    """A kernel's argument. kind: as targets.cuda.entries.arguments has it. size: of an element, in bytes."""

    kind: str
    index: int
    size: int
    is_written: bool


class Geometry(NamedTuple):
    """What a grid and a group become. blocks: 0 of them for a grid without threads. is_line: whether the fast entry takes
    them. extent: as the kernel is given it."""

    blocks: tuple[int, int, int]
    group: tuple[int, int, int]
    is_line: bool
    extent: bytes


class Function:
    """A kernel that is loaded on a GPU. fast: its entry for arguments that are passed one by one; None without one.
    limit: of threads a threadgroup, as the kernel declares it; 0 for none. Launches may come from several threads."""

    def __init__(
        self,
        name: str,
        handle: ctypes.c_void_p,
        fast: ctypes.c_void_p | None,
        limit: int,
        arguments: tuple[Argument, ...],
    ):
        self._name = name
        self._handle = handle
        self._fast = fast
        self._limit = limit
        self._geometries: dict[tuple, Geometry] = {}
        self._dynamic_bytes = 0  # that the kernel has been allowed
        buffers = [a for a in arguments if a.kind != "threadgroup"]
        self._is_value = tuple([(a.index, a.size if a.kind == "value" else 0) for a in buffers])
        # Pairs of pointers that must not show the same memory.
        pointers = [(i, a) for i, a in enumerate(buffers) if a.kind != "value"]
        self._apart = tuple(
            (i, j)
            for i, one in pointers
            for j, other in pointers
            if i < j and (one.is_written or other.is_written)
        )
        self._least_count = max((a.index + 1 for a in buffers), default=0)
        codes = "".join(f"{a.size}s" if a.kind == "value" else "Q" for a in buffers)
        self._passed = struct.Struct(f"<{EXTENT_BYTES}s{codes}")
        self._sizes = [EXTENT_BYTES, *(a.size if a.kind == "value" else 8 for a in buffers)]
        # Not in use by a launch: the driver copies them before it returns.
        self._fast_parameters: list[driver.Parameters] = []
        self._parameters: list[driver.Parameters] = []

    @functools.cached_property
    def max_threads(self) -> int:
        most = min(driver.max_threads(h) for h in (self._handle, self._fast) if h is not None)
        return min(most, self._limit) if self._limit else most

    @functools.cached_property
    def _static_bytes(self) -> int:
        return driver.static_shared_bytes(self._handle)

    def launch(
        self,
        stream: int,
        values: Sequence[Value],
        grid: Sequence[int] | int,
        group: Sequence[int] | int,
        threadgroup_bytes: dict[int, int] | None,
    ) -> None:
        """See Library.launch."""
        try:
            geometry = self._geometries.get((grid, group))
        except TypeError:  # lists
            grid, group = _three("threads", grid), _three("group_size", group)
            geometry = self._geometries.get((grid, group))
        if geometry is None:
            geometry = self._new_geometry(grid, group)
        if geometry.blocks[0] == 0:
            return
        if geometry.is_line and self._fast is not None:
            passed = self._passed_one_by_one(values)
            if passed is not None:
                try:
                    parameters = self._fast_parameters.pop()
                except IndexError:
                    parameters = driver.Parameters(self._sizes)
                self._passed.pack_into(parameters.memory, 0, geometry.extent, *passed)
                driver.launch(self._fast, geometry.blocks, geometry.group, 0, stream, parameters)
                self._fast_parameters.append(parameters)
                return
        try:
            parameters = self._parameters.pop()
        except IndexError:
            parameters = driver.Parameters([LAUNCH_BYTES])
        kept = self._set(parameters.memory, values, geometry.extent)
        shared = 0
        for index, size in (threadgroup_bytes or {}).items():
            struct.pack_into("<I", parameters.memory, _OFFSETS_AT + 4 * index, shared)
            shared += (size + 15) // 16 * 16
        if shared > self._dynamic_bytes and shared + self._static_bytes > _ORDINARY_SHARED_BYTES:
            driver.allow_dynamic_shared_bytes(self._handle, shared)
            self._dynamic_bytes = shared
        driver.launch(self._handle, geometry.blocks, geometry.group, shared, stream, parameters)
        self._parameters.append(parameters)
        # The allocator keeps their memory for what follows on this stream.
        del kept

    def _new_geometry(self, grid: Sequence[int] | int, group: Sequence[int] | int) -> Geometry:
        key = grid, group
        grid, group = _three("threads", grid), _three("group_size", group)
        if not 0 < math.prod(group) <= self.max_threads:
            raise ValueError(
                f"kernel '{self._name}' runs in groups of 1 to {self.max_threads} threads on this GPU, got {group}"
            )
        blocks = groups = tuple(-(-n // size) for n, size in zip(grid, group, strict=True))
        is_flat = any(n > most for n, most in zip(groups, _MAX_BLOCKS, strict=True))
        if is_flat:
            blocks = math.prod(groups), 1, 1
        if math.prod(grid) == 0:
            blocks = 0, 0, 0
        if blocks[0] > _MAX_BLOCKS[0]:
            raise ValueError(
                f"a grid of {grid} threads in groups of {group} has {blocks[0]} groups; a GPU takes {_MAX_BLOCKS[0]}"
            )
        is_line = grid[1] == grid[2] == 1 and group[1] == group[2] == 1
        extent = _EXTENT.pack(*grid, *group, *groups, is_flat)
        if len(self._geometries) >= _KEPT:
            self._geometries.clear()
        geometry = self._geometries[key] = Geometry(blocks, group, is_line, extent)
        return geometry

    def _passed_one_by_one(self, values: Sequence[Value]) -> list[bytes | int] | None:
        """The parameters of the fast entry behind the first; None where the arguments are not for it."""
        if len(values) < self._least_count:
            return None
        passed: list[bytes | int] = []
        for index, size in self._is_value:
            value = values[index]
            if size:
                if type(value) is not bytes or len(value) < size:
                    return None
            else:
                if isinstance(value, Tensor):
                    value = value.data_ptr()
                elif type(value) is not int:
                    return None
                if value % 16 != 0:
                    return None
            passed.append(value)
        for i, j in self._apart:
            low = i if passed[i] < passed[j] else j
            if _end(values[self._is_value[low][0]]) > passed[i + j - low]:
                return None
        return passed

    def _set(
        self, memory: ctypes.Array[ctypes.c_char], values: Sequence[Value], extent: bytes
    ) -> list[Tensor]:
        """Writes a Launch but for its threadgroup memory; returns tensors that it shows besides those among the values."""
        if len(values) > _MAX_BUFFERS:
            raise ValueError(f"a kernel takes at most {_MAX_BUFFERS} buffers, got {len(values)}")
        kept, places, inlined, used = [], [], 0, 0
        for index, value in enumerate(values):
            if isinstance(value, Tensor):
                places.append(value.data_ptr())
            elif isinstance(value, int):
                places.append(value)
            elif value is None:
                places.append(0)
            elif used + len(value) <= _INLINE_BYTES:
                memory[_BYTES_AT + used : _BYTES_AT + used + len(value)] = value
                places.append(used)
                inlined |= 1 << index
                used += (len(value) + 15) // 16 * 16
            else:
                kept.append(torch.frombuffer(bytearray(value), dtype=torch.uint8).cuda())
                places.append(kept[-1].data_ptr())
        places += [0] * (self._least_count - len(places))
        _START.pack_into(memory, 0, extent, inlined)
        struct.pack_into(f"<{len(places)}Q", memory, _BUFFERS_AT, *places)
        return kept


def _end(value: Value) -> int:
    """Where the memory ends that a pointer may show."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        return storage.data_ptr() + storage.nbytes()
    return value or 0


def _three(what: str, sizes: Sequence[int] | int) -> tuple[int, int, int]:
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or any(n < 0 or n >= 2**32 for n in sizes):
        raise ValueError(f"{what} takes an integer or 1 to 3 integers below 2^32, got {sizes}")
    return (*sizes, 1, 1)[:3]
