"""The few functions of the CUDA driver with which kernels are loaded and launched."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p


class DriverError(RuntimeError):
    """A function of the CUDA driver failed; the message says which and why."""


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"there is no NVIDIA driver on this machine ({error})") from None


def _error(name: str, result: int) -> DriverError:
    text = c_char_p()
    _library().cuGetErrorString(result, byref(text))
    return DriverError(f"{name}: {text.value.decode() if text.value else f'error {result}'}")


def _call(name: str, *arguments: object) -> None:
    result = getattr(_library(), name)(*arguments)
    if result != 0:
        raise _error(name, result)


_thread = threading.local()


def ensure_context(index: int) -> None:
    """Gives this thread a GPU's context, torch's own, unless it has one: functions of the driver make none by
    themselves."""
    if getattr(_thread, "has_context", False):
        return
    context, device = c_void_p(), c_int()
    _call("cuCtxGetCurrent", byref(context))
    if not context:
        _call("cuDeviceGet", byref(device), index)
        _call("cuDevicePrimaryCtxRetain", byref(context), device)
        _call("cuCtxSetCurrent", context)
    _thread.has_context = True


class Module:
    """Code that is loaded into the current context."""

    def __init__(self, code: bytes):
        self._handle = c_void_p()
        _call("cuModuleLoadData", byref(self._handle), code)

    def function(self, name: str) -> c_void_p:
        handle = c_void_p()
        _call("cuModuleGetFunction", byref(handle), self._handle, name.encode())
        return handle

    def read(self, name: str) -> bytes:
        """Returns the bytes of a global variable."""
        address, size = c_void_p(), c_size_t()
        _call("cuModuleGetGlobal_v2", byref(address), byref(size), self._handle, name.encode())
        value = ctypes.create_string_buffer(size.value)
        _call("cuMemcpyDtoH_v2", value, address, size)
        return value.raw


_MAX_THREADS_PER_BLOCK = 0
_SHARED_SIZE_BYTES = 1
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


def _attribute(function: c_void_p, attribute: int) -> int:
    value = c_int()
    _call("cuFuncGetAttribute", byref(value), attribute, function)
    return value.value


def max_threads(function: c_void_p) -> int:
    return _attribute(function, _MAX_THREADS_PER_BLOCK)


def static_shared_bytes(function: c_void_p) -> int:
    return _attribute(function, _SHARED_SIZE_BYTES)


def allow_dynamic_shared_bytes(function: c_void_p, size: int) -> None:
    _call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, size)


_MAP_BYTES = 128
_UINT16, _SWIZZLE_128B, _PROMOTION_L2_256B = 1, 3, 3


def _encoded(name: str, *arguments: object) -> bytes:
    """Returns the map that a function of the driver writes."""
    memory = ctypes.create_string_buffer(_MAP_BYTES + 64)
    offset = -ctypes.addressof(memory) % 64
    _call(name, c_void_p(ctypes.addressof(memory) + offset), *arguments)
    return memory.raw[offset : offset + _MAP_BYTES]


def copy_map(address: int, rows: int, columns: int, stride: int, box_rows: int) -> bytes:
    """Returns the map with which the copy engine copies boxes of box_rows x 64 elements of a matrix of 16-bit elements
    to shared memory, in the 128-byte swizzle; beyond the matrix it writes zeros. stride: of rows, in bytes."""
    return _encoded(
        "cuTensorMapEncodeTiled",
        _UINT16,
        2,
        c_void_p(address),
        (c_uint64 * 2)(columns, rows),
        (c_uint64 * 1)(stride),
        (c_uint32 * 2)(64, box_rows),
        (c_uint32 * 2)(1, 1),
        0,
        _SWIZZLE_128B,
        _PROMOTION_L2_256B,
        0,
    )


def copy_map_of_images(
    address: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    lower: Sequence[int],
    upper: Sequence[int],
    steps: Sequence[int],
) -> bytes:
    """Likewise of 64 channels of 64 pixels of images of 16-bit elements. sizes: channels, pixels from the innermost
    dimension on, and images. strides: of all but the first, in bytes. lower, upper: where the first and the last pixels
    are, relative to the first and the last of the images. steps: from one pixel to the next."""
    rank = len(sizes)
    return _encoded(
        "cuTensorMapEncodeIm2col",
        _UINT16,
        rank,
        c_void_p(address),
        (c_uint64 * rank)(*sizes),
        (c_uint64 * (rank - 1))(*strides),
        (c_int * (rank - 2))(*lower),
        (c_int * (rank - 2))(*upper),
        64,
        64,
        (c_uint32 * rank)(1, *steps, 1),
        0,
        _SWIZZLE_128B,
        _PROMOTION_L2_256B,
        0,
    )


@functools.cache
def _launch_kernel() -> Callable[..., int]:
    function = _library().cuLaunchKernel
    function.argtypes = [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p]
    return function


class Parameters:
    """Memory from which the driver copies a kernel's parameters: one after the other, of these sizes in bytes."""

    __slots__ = ("addresses", "memory")

    def __init__(self, sizes: Sequence[int]):
        self.memory = ctypes.create_string_buffer(sum(sizes))
        first = ctypes.addressof(self.memory)
        starts = itertools.accumulate(sizes[:-1], initial=first)
        self.addresses = (c_void_p * len(sizes))(*starts)

    def put(self, offset: int, content: bytes) -> None:
        ctypes.memmove(ctypes.addressof(self.memory) + offset, content, len(content))


def launch(
    function: c_void_p,
    blocks: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    stream: int,
    parameters: Parameters,
) -> None:
    """Queues a kernel. blocks: their numbers. block: the threads of one. shared: bytes of dynamic shared memory."""
    result = _launch_kernel()(function, *blocks, *block, shared, stream, parameters.addresses, None)
    if result != 0:
        raise _error("cuLaunchKernel", result)
