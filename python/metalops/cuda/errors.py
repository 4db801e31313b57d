"""Errors that kernels report with TORCH_REPORT_ERROR (c10/metal/error.h): each GPU has a buffer in host memory to which
kernels write, so that looking for a report does not synchronise."""

from __future__ import annotations

import ctypes

import torch

from . import device


class _Message(ctypes.Structure):
    """c10::metal::ErrorMessage."""

    _fields_ = (
        ("file", ctypes.c_char * 128),
        ("func", ctypes.c_char * 128),
        ("message", ctypes.c_char * 250),
        ("line", ctypes.c_uint32),
    )


class _Messages(ctypes.Structure):
    """c10::metal::ErrorMessages."""

    _fields_ = (("count", ctypes.c_uint32), ("msg", _Message * 30))


class _Buffer:
    def __init__(self):
        self._memory = device.pinned_zeros(ctypes.sizeof(_Messages))
        self.address = self._memory.data_ptr()
        self.messages = _Messages.from_address(self.address)


_buffers: dict[int, _Buffer] = {}


def buffer_address(index: int) -> int:
    """Returns the address of the buffer for the reports of a GPU's kernels."""
    buffer = _buffers.get(index)
    if buffer is None:
        buffer = _buffers.setdefault(index, _Buffer())
    return buffer.address


def raise_reported(index: int) -> None:
    """Raises torch.AcceleratorError for a report by kernels of a GPU, and clears the buffer. Synchronises only if there
    is a report; while a CUDA graph is captured, the report is kept for later."""
    buffer = _buffers.get(index)
    if buffer is None or buffer.messages.count == 0 or device.is_capturing():
        return
    device.synchronize(index)
    # As in torch: the first report is raised, the others are consequences of it or repeats.
    first = buffer.messages.msg[0]
    error = torch.AcceleratorError(first.message.decode(errors="replace"))
    buffer.messages.count = 0
    error.error_code = 1
    raise error


def synchronize(index: int | None = None) -> None:
    """Waits for all work on a GPU (by default the current one) and raises what its kernels have reported.

    Raises torch.AcceleratorError.
    """
    index = device.index_of(()) if index is None else index
    device.synchronize(index)
    raise_reported(index)
