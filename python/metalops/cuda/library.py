"""A kernel library on GPUs: compiled for each when its kernels are first launched there."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..msl import build, cache
from ..msl.errors import Diagnostic, syntax_error
from ..msl.preprocess import preprocess
from ..msl.targets.cuda.emit import CudaCode, emit
from . import driver, nvrtc

HEADERS = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "msl", "include"
)
_MAX_BUFFERS = 31
_INLINE_BYTES = 1024
_MAX_BLOCKS = (2**31 - 1, 65535, 65535)
_ORDINARY_SHARED_BYTES = 48 * 1024  # more must be asked for


class _Extent(ctypes.Structure):
    """msl::abi::Extent of include/msl/cuda/launch.h."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("groups", ctypes.c_uint32 * 3),
        ("is_flat", ctypes.c_uint32),
    )


class _Launch(ctypes.Structure):
    """msl::abi::Launch."""

    _fields_ = (
        ("extent", _Extent),
        ("inlined", ctypes.c_uint32),
        ("threadgroup_offsets", ctypes.c_uint32 * _MAX_BUFFERS),
        ("buffers", ctypes.c_uint64 * _MAX_BUFFERS),
        ("bytes", ctypes.c_char * _INLINE_BYTES),
    )


@dataclass(frozen=True)
class Argument:
    """A kernel's argument. kind: as targets.cuda.entries.arguments has it. size: of an element, in bytes."""

    kind: str
    index: int
    size: int
    is_written: bool


@dataclass(frozen=True)
class Function:
    """A kernel that is loaded on a GPU. fast: its entry for arguments that are passed one by one; None without one.
    limit: of threads a threadgroup, as the kernel declares it; 0 for none."""

    handle: ctypes.c_void_p
    fast: ctypes.c_void_p | None
    limit: int
    arguments: tuple[Argument, ...]

    @functools.cached_property
    def max_threads(self) -> int:
        most = driver.max_threads(self.handle)
        return min(most, self.limit) if self.limit else most


class Library:
    """The kernels of a Metal source."""

    def __init__(
        self,
        source: str,
        name: str = "program_source",
        kernels: Collection[str] = (),
        include_dirs: Collection[str] = (),
    ):
        """name: what errors call the source. kernels: those to compile; all by default. Raises SyntaxError with the user's
        line and column.
        """
        self._code: CudaCode = emit(
            preprocess(source, name=name, include_dirs=include_dirs), kernels
        )
        self._modules: dict[int, driver.Module] = {}
        self._functions: dict[tuple[int, str], Function] = {}

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(self._code.entries)

    def compile(self, architecture: str, debug: bool = False) -> bytes:
        """Code for "sm_90" and the like, or PTX for "compute_90" and the like, from the cache on disk if it is there. debug:
        without optimising. Raises SyntaxError, NvrtcNotFound."""
        text = self._code.without_markers()
        options = (f"-I{HEADERS}", *(["-G"] if debug else []))
        key = cache.key_of("cuda", build.version(), nvrtc.version(), architecture, debug, text)
        found = cache.lookup(key)
        if found is None:
            try:
                code = nvrtc.compile_program(text, "program_source", architecture, options)
            except nvrtc.CompileError as error:
                raise syntax_error(self._diagnostics(str(error))) from None

            def write(path: str) -> None:
                with open(path, "wb") as stream:
                    stream.write(code)

            found = cache.store(key, [], write)
        with open(found, "rb") as stream:
            return stream.read()

    def _diagnostics(self, log: str) -> list[Diagnostic]:
        found = []
        for line, text in nvrtc.errors(log):
            position = self._code.position(line, 1)
            if position is not None:
                source = self._code.lines.source_line(position.file, position.line)
                found.append(
                    Diagnostic(position.file, position.line, position.column, text, source)
                )
        if not found:
            found.append(Diagnostic("program_source", 1, 1, log.strip(), ""))
        return found

    def function(self, device: int, name: str) -> Function:
        """A kernel on the GPU of this index. Raises RuntimeError where there is none of the name."""
        key = device, name
        if key not in self._functions:
            if name not in self.kernel_names:
                raise RuntimeError(
                    f"the library has no kernel {name!r}; it has {', '.join(self.kernel_names)}"
                )
            number, kinds, has_fast_entry = self._code.entries[name]
            with torch.cuda.device(device):
                module = self._module(device)
                facts = module.read(f"msl_facts_{number}")
                handle = module.function(f"msl_kernel_{number}")
                fast = module.function(f"msl_fast_{number}") if has_fast_entry else None
            limit, *numbers = struct.unpack(f"{len(facts) // 4}I", facts)
            rows = zip(kinds, numbers[::3], numbers[1::3], numbers[2::3], strict=True)
            arguments = tuple(Argument(k, i, size, bool(w)) for k, i, size, w in rows)
            self._functions[key] = Function(handle, fast, limit, arguments)
        return self._functions[key]

    def _module(self, device: int) -> driver.Module:
        if device not in self._modules:
            major, minor = torch.cuda.get_device_capability(device)
            self._modules[device] = driver.Module(self.compile(f"sm_{major}{minor}"))
        return self._modules[device]

    def launch(
        self,
        name: str,
        arguments: Sequence[Tensor | bytes | None],
        grid: Sequence[int] | int,
        group: Sequence[int] | int,
        threadgroup_bytes: dict[int, int] | None = None,
    ) -> None:
        """Runs a kernel on the current stream of its tensors' GPU.

        arguments: by buffer index; bytes come with the launch. grid: threads. group: threads of a threadgroup.
        threadgroup_bytes: of memory whose size the launch says, by threadgroup index. Raises ValueError for sizes that no
        launch has, RuntimeError for tensors that are not on one GPU.
        """
        device = _device_of(arguments)
        function = self.function(device, name)
        grid, group = _three("threads", grid), _three("group_size", group)
        if math.prod(grid) == 0:
            return
        if math.prod(group) > function.max_threads or math.prod(group) == 0:
            raise ValueError(
                f"kernel '{name}' runs in groups of 1 to {function.max_threads} threads on this GPU, got {group}"
            )
        groups = tuple(-(-n // size) for n, size in zip(grid, group, strict=True))
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream().cuda_stream
            if (
                function.fast is not None
                and grid[1] == grid[2] == 1
                and groups[0] <= _MAX_BLOCKS[0]
            ):
                passed = _passed_one_by_one(function, arguments)
                if passed is not None:
                    extent = _Extent(grid, group, groups, 0)
                    driver.launch(function.fast, groups, group, 0, stream, [extent, *passed])
                    return
            launch = _Launch()
            _set_arguments(launch, arguments, device)
            shared = 0
            for index, size in (threadgroup_bytes or {}).items():
                launch.threadgroup_offsets[index] = shared
                shared += (size + 15) // 16 * 16
            is_flat = any(n > most for n, most in zip(groups, _MAX_BLOCKS, strict=True))
            launch.extent = _Extent(grid, group, groups, is_flat)
            if shared and shared + driver.static_shared_bytes(function.handle) > (
                _ORDINARY_SHARED_BYTES
            ):
                driver.allow_dynamic_shared_bytes(function.handle, shared)
            blocks = (math.prod(groups), 1, 1) if is_flat else groups
            driver.launch(function.handle, blocks, group, shared, stream, [launch])


def _current(device: int) -> contextlib.AbstractContextManager:
    """Makes a GPU the current one, if it is not."""
    if torch.cuda.current_device() == device:
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def _passed_one_by_one(
    function: Function, arguments: Sequence[Tensor | bytes | None]
) -> list[object] | None:
    """The parameters of the fast entry behind the first; None where the arguments are not for it."""
    passed: list[object] = []
    shown: list[tuple[int, int, bool]] = []  # begin, end, is it written
    for argument in function.arguments:
        value = arguments[argument.index] if argument.index < len(arguments) else None
        if argument.kind == "value":
            if not isinstance(value, bytes) or len(value) != argument.size:
                return None
            passed.append(ctypes.create_string_buffer(value, len(value)))
        else:
            if not isinstance(value, Tensor) or value.data_ptr() % 16 != 0:
                return None
            begin = value.data_ptr()
            end = value.untyped_storage().data_ptr() + value.untyped_storage().nbytes()
            for other_begin, other_end, other_written in shown:
                overlaps = begin < other_end and other_begin < end
                if overlaps and (argument.is_written or other_written):
                    return None
            shown.append((begin, end, argument.is_written))
            passed.append(ctypes.c_uint64(begin))
    return passed


def _device_of(arguments: Sequence[Tensor | bytes | None]) -> int:
    devices = {a.device for a in arguments if isinstance(a, Tensor)}
    if len(devices) > 1 or any(d.type != "cuda" for d in devices):
        raise RuntimeError(
            f"a kernel's tensors are on one GPU, got {', '.join(sorted(map(str, devices)))}"
        )
    return devices.pop().index if devices else torch.cuda.current_device()


def _set_arguments(
    launch: _Launch, arguments: Sequence[Tensor | bytes | None], device: int
) -> None:
    if len(arguments) > _MAX_BUFFERS:
        raise ValueError(f"a kernel takes at most {_MAX_BUFFERS} buffers, got {len(arguments)}")
    used = 0
    for index, argument in enumerate(arguments):
        if isinstance(argument, Tensor):
            launch.buffers[index] = argument.data_ptr()
        elif argument is not None and used + len(argument) <= _INLINE_BYTES:
            start = ctypes.addressof(launch) + _Launch.bytes.offset + used
            ctypes.memmove(start, argument, len(argument))
            launch.buffers[index] = used
            launch.inlined |= 1 << index
            used += (len(argument) + 15) // 16 * 16
        elif argument is not None:
            copy = torch.frombuffer(bytearray(argument), dtype=torch.uint8)
            # The allocator keeps its memory for what follows on this stream.
            launch.buffers[index] = copy.to(f"cuda:{device}").data_ptr()


def _three(what: str, sizes: Sequence[int] | int) -> tuple[int, int, int]:
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or any(n < 0 or n >= 2**32 for n in sizes):
        raise ValueError(f"{what} takes an integer or 1 to 3 integers below 2^32, got {sizes}")
    return (*sizes, 1, 1)[:3]
