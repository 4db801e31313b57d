"""Replays the launches of a trace, on the software device or on a GPU."""

from __future__ import annotations

import contextlib
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .._textures import Sampler, Texture
from .._textures.argument import HandleArgument, bound, texture_argument
from .._textures.layout import layout_of
from .format import Argument, Launch, Trace, TraceError, Write
from .numbers import make

# Tolerances between devices: functions of the library differ by some units in the last place, and sums in their order.
# Relative to the element, and a tenth of it relative to the largest element of the result, since terms cancel.
_TOLERANCES = {
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
_REPEATS = 7
_SECONDS_A_REPEAT = 2e-3
_MOST_RUNS = 50


@dataclass(frozen=True)
class Row:
    """The outcome of a launch. seconds: median of several runs, None if it was not timed. bytes: of its operands, each
    counted once. problems: a line for each result that is not the recorded one; None if there was nothing to compare
    with."""

    launch: Launch
    bytes: int
    seconds: float | None = None
    problems: tuple[str, ...] | None = None

    @property
    def rate(self) -> float | None:
        """Bytes per second."""
        return self.bytes / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Buffer:
    """A buffer argument of a kernel. bytes: the minimum that it accesses, 0 if that is unknown."""

    index: int
    name: str
    bytes: int


class Library(Protocol):
    """Compiled kernels."""

    def buffers_of(self, name: str) -> Sequence[Buffer]: ...

    def launch(
        self,
        name: str,
        arguments: Sequence[Tensor | bytes | None],
        grid: Sequence[int],
        group: Sequence[int],
        threadgroup_bytes: Mapping[int, int],
        textures: Sequence[Texture | None] = (),
        samplers: Sequence[Sampler | None] = (),
    ) -> None: ...


class Device(Protocol):
    """A device that runs launches."""

    torch_device: torch.device

    def library(
        self, source: str, kernels: Sequence[str], constants: Mapping[int, bytes]
    ) -> Library:
        """Compiles those kernels of a source."""

    def seconds(self, run: Callable[[], None]) -> float:
        """Returns the median time of a run, which has run before."""


class _SoftwareLibrary:
    def __init__(self, library):
        self.library = library
        self.table = {entry["name"]: entry["arguments"] for entry in library.kernel_table()}

    def launch(
        self, name, arguments, grid, group, threadgroup_bytes, textures=(), samplers=()
    ) -> None:
        taken = [
            HandleArgument(a["name"], a["type"], a["index"], a["is_on"])
            if a["kind"] == "sampler"
            else texture_argument(a["name"], a["type"], a["index"], a["is_on"])
            for a in self.table[name]
            if a["kind"] in ("texture", "sampler")
        ]
        try:
            for _ in bound(name, taken, textures, samplers):
                pass
        except RuntimeError as error:
            raise TraceError(str(error)) from None
        self.library.launch(
            name,
            arguments,
            grid,
            group,
            threadgroup_bytes,
            textures=[t.described() if t else b"" for t in textures],
            samplers=[s.bits if s else 0 for s in samplers],
        )

    def buffers_of(self, name: str) -> Sequence[Buffer]:
        return [
            # A reference is one element; a pointer may have none.
            Buffer(a["index"], a["name"], a["element_bytes"] if a["type"].endswith("&") else 0)
            for a in self.table[name]
            if a["kind"] == "buffer"
        ]


class SoftwareDevice:
    torch_device = torch.device("cpu")

    def library(
        self, source: str, kernels: Sequence[str], constants: Mapping[int, bytes]
    ) -> Library:
        from metalops import _host, msl

        options = msl.Options(kernels=tuple(kernels))
        library = _host.Library(msl.compile_source(source, options=options))
        return _SoftwareLibrary(library.specialise(constants) if constants else library)

    def seconds(self, run: Callable[[], None]) -> float:
        def clock() -> float:
            before = time.perf_counter()
            run()
            return time.perf_counter() - before

        return statistics.median(clock() for _ in range(_REPEATS))


class _CudaLibrary:
    def __init__(self, library, index: int):
        self.library = library
        self.index = index
        self.launch = library.launch

    def buffers_of(self, name: str) -> Sequence[Buffer]:
        arguments = self.library.function(self.index, name).arguments
        return [Buffer(a.index, "", 0) for a in arguments if a.kind in ("buffer", "tensor")]


class CudaDevice:
    def __init__(self, index: int | None = None):
        if not torch.cuda.is_available():
            raise RuntimeError("replay: torch finds no CUDA device here")
        current = torch.cuda.current_device() if index is None else index
        self.torch_device = torch.device("cuda", current)

    def library(
        self, source: str, kernels: Sequence[str], constants: Mapping[int, bytes]
    ) -> Library:
        from metalops.cuda.library import Library

        library = Library(source, kernels=kernels, constants=constants)
        return _CudaLibrary(library, self.torch_device.index)

    def seconds(self, run: Callable[[], None]) -> float:
        """Times runs in a CUDA graph, without the cost of a launch from Python."""
        torch.cuda.synchronize()
        once = self.timed(run)
        runs = max(1, min(_MOST_RUNS, int(_SECONDS_A_REPEAT / once)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(runs):
                run()
        graph.replay()
        return statistics.median(self.timed(graph.replay) for _ in range(_REPEATS)) / runs

    def timed(self, work: Callable[[], None]) -> float:
        """Returns the seconds between events before and after `work`."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


DEVICES: dict[str, Callable[[], Device]] = {"host": SoftwareDevice, "cuda": CudaDevice}


def copy_rate(device: Device) -> float:
    """Returns the bytes that a copy reads and writes per second, with memory too large for any cache."""
    size = 2**30 if device.torch_device.type == "cuda" else 2**28
    source = torch.zeros(size, dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    target.copy_(source)
    if device.torch_device.type == "cuda":
        # Not in a graph, where a copy is slower.
        return 2 * size / min(device.timed(lambda: target.copy_(source)) for _ in range(10))
    return 2 * size / device.seconds(lambda: target.copy_(source))


def replay(
    trace: Trace, device: Device, *, check: bool = False, timed: bool = False
) -> Iterator[Row]:
    """Runs the launches of a trace in their order, and yields the outcome of each.

    check: compares the memory after them with the recorded contents if all their inputs are known, and continues from
    the recorded contents. timed: also runs each several times, from the same memory.

    Kernels run as they did when they were recorded: only sanitizers detect accesses beyond their buffers.

    Raises TraceError if the trace asks for more memory than the machine has, for a kernel that its source does not
    have, or for a launch without one of its kernel's buffers; and errors that kernels raise.
    """
    memories = memories_of(trace, device)
    libraries = Libraries(trace, device)
    number = -1
    for event in trace.events:
        if isinstance(event, Write):
            with _told_of(f"contents of memory {event.memory}"):
                _write(trace, event, memories[event.memory])
            continue
        number += 1
        with _told_of(f"launch {number} of {event.kernel!r}"):
            library = libraries.library_of(event)
            _check_bound(trace, event, library)
            row = _run(trace, event, library, memories, device, check, timed)
        yield row


@contextlib.contextmanager
def _told_of(what: str) -> Iterator[None]:
    """Turns errors about values that do not fit into TraceErrors."""
    try:
        yield
    except TraceError:
        raise
    except (SyntaxError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        reason = str(error.args[0] if isinstance(error, KeyError) else error).split("\n")[0]
        raise TraceError(f"{what}: {reason}") from error


def _run(
    trace: Trace,
    launch: Launch,
    library: Library,
    memories: list[Tensor],
    device: Device,
    check: bool,
    timed: bool,
) -> Row:
    run = launching(launch, library, memories)
    seconds = None
    if timed:
        written = {memory for memory, is_written in launch.accesses if is_written}
        before = {m: memories[m].clone() for m in written}
        run()
        seconds = device.seconds(run)
        for memory, contents in before.items():
            memories[memory].copy_(contents)
    run()
    problems = None
    if check and launch.results:
        problems = tuple(_compare(trace, launch, memories))
    return Row(launch, _operand_bytes(launch), seconds, problems)


def launching(launch: Launch, library: Library, memories: list[Tensor]) -> Callable[[], None]:
    """Returns a function that runs a launch, any number of times."""
    arguments = arguments_of(launch, memories)
    textures: list[Texture | None] = _by_index(
        {
            t.index: Texture(
                tuple(memories[memory][offset:] for memory, offset in t.levels),
                layout_of(bytes.fromhex(t.description)),
            )
            for t in launch.textures
        }
    )
    samplers: list[Sampler | None] = _by_index(
        {index: Sampler({}, bits) for index, bits in launch.samplers.items()}
    )
    return lambda: library.launch(
        launch.kernel,
        arguments,
        launch.grid,
        launch.group,
        launch.threadgroup_bytes,
        textures,
        samplers,
    )


def _by_index(values: Mapping[int, object]) -> list:
    return [values.get(index) for index in range(1 + max(values, default=-1))]


def _check_bound(trace: Trace, launch: Launch, library: Library) -> None:
    """Raises TraceError if a kernel would find no buffer, or one that is smaller than its reference argument."""
    bound = {a.index: a for a in launch.arguments}
    for buffer in library.buffers_of(launch.kernel):
        what = f"buffer {buffer.index}" + (f" ('{buffer.name}')" if buffer.name else "")
        argument = bound.get(buffer.index)
        if argument is None:
            raise TraceError(f"a launch of {launch.kernel!r} binds nothing to {what}")
        if argument.memory is not None:
            size = trace.memories[argument.memory].bytes - argument.offset
        else:
            size = len(argument.value or "") // 2
        if size < buffer.bytes:
            raise TraceError(
                f"a launch of {launch.kernel!r} binds {size} bytes to {what}, which has {buffer.bytes}"
            )


def memories_of(trace: Trace, device: Device) -> list[Tensor]:
    """Returns the memories of a trace, zeroed. Raises TraceError if there is no room for them."""
    wanted = sum(m.bytes for m in trace.memories)
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.torch_device.type == "cuda":
        has = torch.cuda.get_device_properties(device.torch_device).total_memory
    if wanted > has:
        raise TraceError(f"the trace needs {wanted} bytes of memory, and there are {has}")
    try:
        return [_zeros(m.bytes, device) for m in trace.memories]
    except RuntimeError as error:  # torch raises it when it runs out of memory
        reason = str(error).split("\n")[0]
        raise TraceError(f"the trace needs {wanted} bytes of memory: {reason}") from None


def _zeros(size: int, device: Device) -> Tensor:
    """Returns bytes in whole words, as from all allocators of torch: atomics of two bytes access the four that contain
    them."""
    words = torch.zeros(-(-size // 4), dtype=torch.int32, device=device.torch_device)
    return words.view(torch.uint8)[:size]


class Libraries:
    """The libraries of a trace, compiled on demand, with the kernels that it launches."""

    def __init__(self, trace: Trace, device: Device):
        self.trace = trace
        self.device = device
        self.kernels: dict[str, dict[str, None]] = {}
        for launch in trace.launches:
            self.kernels.setdefault(launch.source, {})[launch.kernel] = None
        self.libraries: dict[tuple, Library] = {}

    def library_of(self, launch: Launch) -> Library:
        key = (launch.source, tuple(sorted(launch.constants.items())))
        if key not in self.libraries:
            self.libraries[key] = self.device.library(
                self.trace.blobs[launch.source].decode("latin-1"),
                tuple(self.kernels[launch.source]),
                {i: bytes.fromhex(value) for i, value in launch.constants.items()},
            )
        return self.libraries[key]


def arguments_of(launch: Launch, memories: list[Tensor]) -> list[Tensor | bytes | None]:
    """Returns the arguments by the index that each is bound to."""
    return _by_index({a.index: _bound(a, memories) for a in launch.arguments})


def _bound(argument: Argument, memories: list[Tensor]) -> Tensor | bytes | None:
    if argument.memory is not None:
        place = memories[argument.memory][argument.offset :]
        for at, memory, offset in argument.addresses:
            address = struct.pack("q", memories[memory].data_ptr() + offset)
            word = torch.frombuffer(bytearray(address), dtype=torch.uint8)
            memories[argument.memory][at : at + 8] = word.to(place.device)
        return place
    value = bytearray.fromhex(argument.value or "")
    for at, memory, offset in argument.addresses:
        struct.pack_into("Q", value, at, memories[memory].data_ptr() + offset)
    return bytes(value) or None


def _operand_bytes(launch: Launch) -> int:
    """Returns the bytes of the distinct elements of tensors and of texels, of each operand."""
    textures = [layout_of(bytes.fromhex(t.description)).bytes for t in launch.textures]
    return sum(map(_argument_bytes, launch.arguments)) + sum(textures)


def _argument_bytes(argument: Argument) -> int:
    if argument.tensor is None:
        return len(argument.value or "") // 2
    dtype, sizes, strides = argument.tensor
    size = getattr(torch, dtype).itemsize
    for n, stride in zip(sizes, strides, strict=True):
        size *= n if stride != 0 or n == 0 else 1
    return size


def _write(trace: Trace, write: Write, memory: Tensor) -> None:
    if write.contents is not None:
        contents = torch.frombuffer(bytearray(trace.blobs[write.contents]), dtype=torch.uint8)
        memory.copy_(contents)
        return
    description = trace.memories[write.memory]
    generator = dict(write.generator or {"kind": "nothing"})
    if generator["kind"] == "nothing" or description.dtype is None:
        return
    dtype = getattr(torch, description.dtype)
    values = memory[: memory.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    try:
        make(values, generator, torch.Generator(memory.device).manual_seed(write.memory))
    except RuntimeError as error:  # torch raises it for numbers out of the dtype's range
        raise ValueError(str(error)) from None


def _compare(trace: Trace, launch: Launch, memories: list[Tensor]) -> Iterator[str]:
    """Yields a line for each result that differs; leaves the recorded ones in memory."""
    for index, name in launch.results.items():
        expected = torch.frombuffer(bytearray(trace.blobs[name]), dtype=torch.uint8)
        actual = memories[index].to("cpu", copy=True)
        memories[index].copy_(expected)
        if torch.equal(actual, expected):
            continue
        bound = next((a for a in launch.arguments if a.memory == index and a.writable), None)
        dtype = trace.memories[index].dtype
        if bound is not None and bound.tensor is not None:
            dtype = bound.tensor[0]
        problem = _difference(actual, expected, getattr(torch, dtype) if dtype else torch.uint8)
        if problem:
            where = f"buffer {bound.index}" if bound is not None else f"memory {index}"
            yield f"{where}: {problem}"


def _difference(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> str | None:
    """Returns what is wrong with the bytes of numbers; None if they are within the tolerance."""
    size = len(actual) // dtype.itemsize * dtype.itemsize
    x, y = actual[:size].view(dtype), expected[:size].view(dtype)
    if dtype not in _TOLERANCES:
        differ = x != y
        if not differ.any():
            return None
        first = int(differ.nonzero()[0])
        return f"{int(differ.sum())} of {len(x)} elements differ, the first at {first}: {x[first]} instead of {y[first]}"
    wide = torch.complex128 if dtype.is_complex else torch.float64
    x, y = x.to(wide), y.to(wide)
    finite = y.abs().nan_to_num(0, 0, 0)
    allowed = _TOLERANCES[dtype] * (finite + 0.1 * (finite.max() if len(finite) else 0))
    same = (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= allowed)
    if same.all():
        return None
    worst = int(((x - y).abs().nan_to_num(float("inf")) * ~same).argmax())
    return (
        f"{int((~same).sum())} of {len(x)} elements differ, the worst at {worst}: "
        f"{x[worst].item():.8g} instead of {y[worst].item():.8g}"
    )
