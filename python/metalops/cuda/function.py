"""A kernel that is loaded on a GPU, and the parameters of its launches.

A launch costs a few microseconds, so everything that does not change from one to the next is kept: facts about the
arguments, the launch configuration of each grid, and the memory from which the driver copies the parameters.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from .._textures import Sampler, Texture
from . import copy_maps, driver, tensor_argument, texture_argument
from .long_values import on_gpu
from .nvrtc import LaunchFacts
from .tensor_argument import TensorArgument
from .texture_argument import HandleArgument

Value = Tensor | bytes | int | None

# A compromise: small groups are many, and in large ones threads wait for the last to finish: 1024 take up to 15 %
# longer than 128 to 512 (benchmarks/gpu.py).
USUAL_GROUP = 256
_NUMBERS_BYTES = 128  # msl::abi::kNumbersBytes
_MOST_THREADS = 1024  # of a group, if the kernel does not say
_MAX_BUFFERS = 31
_INLINE_BYTES = 1024
_MAX_BLOCKS = (2**31 - 1, 65535, 65535)  # of one launch
MOST_OF_A_DIMENSION = (
    1024,
    1024,
    64,
)  # threads of a block, by the CUDA C++ Programming Guide's table of limits
_WARP = 32
_NOTHING = LaunchFacts()
_ORDINARY_SHARED_BYTES = 48 * 1024  # more needs an opt-in
_KEPT = 1024  # grids

# msl::abi::Extent of include/msl/cuda/launch.h: grid, group, groups, first.
_EXTENT = struct.Struct("<12I")
EXTENT_BYTES = _EXTENT.size
# msl::abi::Launch: an extent, a bit for each buffer in `bytes`, offsets of threadgroup memory, buffers, bytes.
_OFFSETS_AT = EXTENT_BYTES + 4
_BUFFERS_AT = _OFFSETS_AT + 4 * _MAX_BUFFERS
_BYTES_AT = (
    (_BUFFERS_AT + 8 * (_MAX_BUFFERS + 1) + 15) // 16 * 16
)  # and the table of textures and samplers
LAUNCH_BYTES = _BYTES_AT + _INLINE_BYTES


@dataclass(frozen=True)
class Argument:
    """A kernel's argument. kind: one of targets.cuda.entries.Entry's. size: of an element, in bytes."""

    kind: str
    index: int
    size: int
    is_written: bool


class Geometry(NamedTuple):
    """The launch configuration of a grid and a group. parts: the launches, each the number of its blocks and the extent
    that is passed to the kernel; none for a grid without threads. block: threads. is_line: true if grid and group are
    one-dimensional."""

    parts: tuple[tuple[tuple[int, int, int], bytes], ...]
    block: tuple[int, int, int]
    is_line: bool


class _OneByOne:
    """An entry that takes its arguments one by one: pointers to aligned memory that do not alias where one is written
    to, and bytes of known sizes."""

    def __init__(
        self,
        handle: ctypes.c_void_p,
        buffers: Sequence[Argument],
        brings_numbers: bool,
        launched_bytes: int,
        takes_maps: bool,
    ):
        self.handle = handle
        self._launched_bytes = launched_bytes
        if launched_bytes:
            driver.allow_dynamic_shared_bytes(handle, launched_bytes)
        sizes = [_size_of(a, brings_numbers) for a in buffers]
        self._arguments = tuple(
            (a.index, size, a.kind == "numbers") for a, size in zip(buffers, sizes, strict=True)
        )
        # Pairs of pointers that must not alias.
        pointers = [(i, a) for i, a in enumerate(buffers) if not sizes[i]]
        self._apart = tuple(
            (i, j)
            for i, one in pointers
            for j, other in pointers
            if i < j and (one.is_written or other.is_written)
        )
        codes = "".join(f"{size}s" if size else "Q" for size in sizes)
        self._layout = struct.Struct(f"<{EXTENT_BYTES}s{codes}")
        self._sizes = [EXTENT_BYTES, *(size or 8 for size in sizes)]
        if takes_maps:
            self._sizes.append(copy_maps.MAPS_BYTES)
        # Free parameter memory: the driver copies it before a launch returns.
        self._parameters: list[driver.Parameters] = []

    def launch(
        self, values: Sequence[Value], geometry: Geometry, stream: int, maps: bytes | None
    ) -> bool:
        """Launches the kernel; returns false if this entry cannot take the arguments. maps: see copy_maps; None for
        none."""
        passed = self._passed(values)
        if passed is None:
            return False
        try:
            parameters = self._parameters.pop()
        except IndexError:
            parameters = driver.Parameters(self._sizes)
        if maps is not None:
            parameters.put(self._layout.size, maps)
        for blocks, extent in geometry.parts:
            self._layout.pack_into(parameters.memory, 0, extent, *passed)
            driver.launch(
                self.handle, blocks, geometry.block, self._launched_bytes, stream, parameters
            )
        self._parameters.append(parameters)
        return True

    def _passed(self, values: Sequence[Value]) -> list[bytes | int] | None:
        passed: list[bytes | int] = []
        for index, size, is_array in self._arguments:
            value = values[index]
            if size:
                if type(value) is not bytes:
                    return None
                if len(value) > size if is_array else len(value) < size:
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
            if _end(values[self._arguments[low][0]]) > passed[i + j - low]:
                return None
        return passed


def _size_of(argument: Argument, brings_numbers: bool) -> int:
    """Returns the bytes that are passed with the launch; 0 for a pointer."""
    if argument.kind == "value":
        return argument.size
    return _NUMBERS_BYTES if brings_numbers and argument.kind == "numbers" else 0


class Function:
    """A kernel that is loaded on a GPU. Launches may come from several threads."""

    def __init__(
        self,
        name: str,
        entries: tuple[ctypes.c_void_p, ctypes.c_void_p | None, ctypes.c_void_p | None],
        limit: int,
        arguments: tuple[Argument, ...],
        is_free: bool,
        whole_warps: bool,
        tensors: Mapping[int, TensorArgument],
        handles: Sequence[HandleArgument] = (),
        asked_of_launch: LaunchFacts = _NOTHING,
        takes_maps: bool = False,
    ):
        """entries: the one that takes all launches; those that take arguments one by one, without and with constant
        numbers that are passed with the launch, None where there is none. limit: of threads a threadgroup, as the
        kernel declares it; 0 for none. is_free: true if groups may have any size. whole_warps: true if blocks are
        one-dimensional and consist of whole warps. tensors: the arguments that are tensors by handles, by buffer.
        handles: the textures and samplers. takes_maps: true if the entries have a parameter for maps of the copy engine,
        which kernels use that ask for memory."""
        self.arguments = arguments
        self._tensors = tensors
        self._handles = handles
        self._name = name
        self._handle, fast, brings = entries
        self._all_entries = [e for e in entries if e is not None]
        self._limit = limit
        self._is_free = is_free
        self._whole_warps = whole_warps
        self._geometries: dict[tuple, Geometry] = {}
        self._dynamic_bytes = 0  # opted in for the kernel so far
        buffers = [a for a in arguments if a.kind != "threadgroup"]
        launched_bytes = self._launched_bytes = asked_of_launch.memory
        self._gathered = asked_of_launch.gathered
        self._sizes = [LAUNCH_BYTES, *([copy_maps.MAPS_BYTES] if takes_maps else [])]
        self._fast = self._brings = None
        if fast is not None:
            self._fast = _OneByOne(fast, buffers, False, launched_bytes, takes_maps)
        if brings is not None:
            self._brings = _OneByOne(brings, buffers, True, launched_bytes, takes_maps)
        self._least_count = max((a.index + 1 for a in buffers), default=0)
        # Free parameter memory: the driver copies it before a launch returns.
        self._parameters: list[driver.Parameters] = []

    @functools.cached_property
    def max_threads(self) -> int:
        most = min(map(driver.max_threads, self._all_entries))
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
        textures: Sequence[Texture] = (),
        samplers: Sequence[Sampler] = (),
    ) -> None:
        """Launches the kernel; see Library.launch."""
        table = b""
        if self._handles or textures or samplers:
            table = texture_argument.table(self._name, self._handles, textures, samplers)
        maps = None
        if self._gathered:
            maps = copy_maps.of_gathered(self._gathered, values)
        elif self._launched_bytes:
            maps = copy_maps.of_launch(self._read_first(values))
        if self._tensors:
            values = tensor_argument.described(self._name, self._tensors, values)
        try:
            geometry = self._geometries.get((grid, group))
        except TypeError:  # lists
            grid, group = _three("threads", grid), _three("group_size", group)
            geometry = self._geometries.get((grid, group))
        if geometry is None:
            geometry = self._new_geometry(grid, group)
        if not geometry.parts:
            return
        if len(values) >= self._least_count:
            if self._brings is not None and self._brings.launch(values, geometry, stream, maps):
                return
            if self._fast is not None and geometry.is_line:
                if self._fast.launch(values, geometry, stream, maps):
                    return
        try:
            parameters = self._parameters.pop()
        except IndexError:
            parameters = driver.Parameters(self._sizes)
        if maps is not None:
            parameters.put(LAUNCH_BYTES, maps)
        kept = self._set(parameters.memory, values, table)
        shared = 0
        for index, size in (threadgroup_bytes or {}).items():
            struct.pack_into("<I", parameters.memory, _OFFSETS_AT + 4 * index, shared)
            shared += (size + 15) // 16 * 16
        shared += self._launched_bytes
        if shared > self._dynamic_bytes and shared + self._static_bytes > _ORDINARY_SHARED_BYTES:
            driver.allow_dynamic_shared_bytes(self._handle, shared)
            self._dynamic_bytes = shared
        for blocks, extent in geometry.parts:
            parameters.memory[:EXTENT_BYTES] = extent
            driver.launch(self._handle, blocks, geometry.block, shared, stream, parameters)
        self._parameters.append(parameters)
        # The allocator keeps their memory for later work on this stream.
        del kept

    def _read_first(self, values: Sequence[Value]) -> list[Value]:
        """Returns arguments in the order in which maps are made of them."""
        written = {a.index for a in self.arguments if a.is_written}
        indices = sorted(range(len(values)), key=lambda i: (i in written, i))
        return [values[i] for i in indices]

    def _new_geometry(self, grid: Sequence[int] | int, group: Sequence[int] | int) -> Geometry:
        key = grid, group
        grid, group = _three("threads", grid), _three("group_size", group)
        if self._is_free and 0 < math.prod(group) <= (self._limit or _MOST_THREADS):
            group = group_within(group, USUAL_GROUP)
        if not 0 < math.prod(group) <= self.max_threads:
            raise ValueError(
                f"kernel '{self._name}' runs in groups of 1 to {self.max_threads} threads on this GPU, got {group}"
            )
        block = group
        if self._whole_warps:
            block = -(-math.prod(group) // _WARP) * _WARP, 1, 1
        elif group[2] > MOST_OF_A_DIMENSION[2]:
            raise ValueError(
                f"kernel '{self._name}': CUDA runs groups of at most {MOST_OF_A_DIMENSION[2]} threads in the third dimension, "
                f"got {group}"
            )
        is_line = grid[1] == grid[2] == 1 and group[1] == group[2] == 1
        if len(self._geometries) >= _KEPT:
            self._geometries.clear()
        geometry = self._geometries[key] = Geometry(_parts(grid, group), block, is_line)
        return geometry

    def _set(
        self, memory: ctypes.Array[ctypes.c_char], values: Sequence[Value], table: bytes
    ) -> list[Tensor]:
        """Writes a Launch without its extent and threadgroup memory; returns tensors that it points to besides those
        among the values. table: of textures and samplers; empty without any."""
        if len(values) > _MAX_BUFFERS:
            raise ValueError(f"a kernel takes at most {_MAX_BUFFERS} buffers, got {len(values)}")
        kept, places, inlined, used = [], [], 0, 0
        if table:
            values = [*values, *[None] * (_MAX_BUFFERS - len(values)), table]
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
                kept.append(on_gpu(value))
                places.append(kept[-1].data_ptr())
        places += [0] * (self._least_count - len(places))
        struct.pack_into("<I", memory, EXTENT_BYTES, inlined)
        struct.pack_into(f"<{len(places)}Q", memory, _BUFFERS_AT, *places)
        return kept


def _parts(
    grid: tuple[int, int, int], group: tuple[int, int, int]
) -> tuple[tuple[tuple[int, int, int], bytes], ...]:
    """Returns a grid's launches: see Geometry."""
    groups = tuple(-(-n // size) for n, size in zip(grid, group, strict=True))
    firsts = [range(0, n, most) for n, most in zip(groups, _MAX_BLOCKS, strict=True)]
    return tuple(
        (
            tuple(map(min, _MAX_BLOCKS, (n - at for n, at in zip(groups, first, strict=True)))),
            _EXTENT.pack(*grid, *group, *groups, *first),
        )
        for first in itertools.product(*firsts)
    )


def _end(value: Value) -> int:
    """Returns the end of the memory that a pointer may address."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        return storage.data_ptr() + storage.nbytes()
    return value or 0


def group_within(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Returns a group of as many dimensions, no larger in any, with at most `most` threads, that CUDA can launch: x
    grows first."""
    group = []
    for size, limit in zip(sizes, MOST_OF_A_DIMENSION):
        group.append(max(1, min(size, most, limit)))
        most //= group[-1]
    return tuple(group)


def _three(what: str, sizes: Sequence[int] | int) -> tuple[int, int, int]:
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or any(n < 0 or n >= 2**32 for n in sizes):
        raise ValueError(f"{what} takes an integer or 1 to 3 integers below 2^32, got {sizes}")
    return (*sizes, 1, 1)[:3]
