"""Brings up the software mps device on the Python side of torch.

The shared library registers the device with torch's C++ side when it is loaded. The rest is Python: torch lacks the
functions that PyTorch compiles only on a Mac, torch.backends.mps caches answers, and storages have no mps case.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import platform

import torch

from .. import _host
from . import c_shim, stock
from .internals import (
    add_mps,
    add_mps_streams,
    choose_conv_backend_of_mps,
    has_mps_streams,
    mps_function,
    remembered_mps_answers,
)

_stand_ins: frozenset[str] = frozenset()
_without_kernel: frozenset[str] = frozenset()


def bring_up() -> None:
    """Makes torch.device("mps") work. Calling it again changes nothing."""
    global _stand_ins, _without_kernel
    if _stand_ins:
        return
    served, unserved = _host.register_stock_operators(sorted(stock.stock_overloads()))
    _stand_ins, _without_kernel = frozenset(served), frozenset(unserved)
    _host.register_sparse_operators(*map(sorted, stock.sparse_overloads()))
    c_shim.make_global(os.path.dirname(_host.__file__), _host.__file__)
    _forget_cached_answers()
    _add_missing_functions()
    if has_mps_streams():
        _add_streams()
    _replace_compile_shader()
    _patch_storages()
    choose_conv_backend_of_mps()
    atexit.register(_finish_autograd)


def stand_ins() -> frozenset[str]:
    """Returns the operator overloads that a CPU kernel serves on the device."""
    return _stand_ins


def stock_operators_without_kernel() -> frozenset[str]:
    """Returns the stock MPS overloads that nothing can serve, because torch has no CPU kernel for them."""
    return _without_kernel


def _forget_cached_answers() -> None:
    for function in remembered_mps_answers:
        function.cache_clear()


def _finish_autograd() -> None:
    # In a child that was forked after autograd had started its threads torch raises, and there is nothing to wait for.
    with contextlib.suppress(RuntimeError):
        _host.drain_autograd_thread()


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _add_missing_functions() -> None:
    add_mps(
        get_name=lambda: f"metalops software device ({_processor_name()})",
        get_core_count=lambda: len(os.sched_getaffinity(0)),
        host_alias_storage=_host_alias_storage,
        isCaptureEnabled=lambda: False,
        isCapturing=lambda: False,
        startCapture=_start_capture,
        stopCapture=lambda: None,
    )


class _MPSStreamBase(torch.Stream):
    """A stream of the device: one of the pool, or that of a number."""

    def __new__(cls, stream_id: int = -1):
        if stream_id == -1:
            stream_id = _host.stream_from_pool()
        else:
            _host.check_stream(stream_id)
        return super().__new__(
            cls, stream_id=stream_id, device_index=0, device_type=_host.DEVICE_TYPE
        )

    def synchronize(self) -> None:
        _host.synchronize_stream(self.stream_id)


def _add_streams() -> None:
    _host.make_stream_pool()
    add_mps_streams(
        _MPSStreamBase,
        getCurrentStream=lambda: _MPSStreamBase(_host.current_stream()),
        setStream=lambda stream: _host.set_current_stream(stream.stream_id),
        allocator_waitForEvents=lambda pointers: (
            False
        ),  # no buffer has an event, as its recordEvents says
    )


def _host_alias_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return _host.host_alias_storage(storage)


def _start_capture(name: str) -> None:
    raise RuntimeError(
        f"metal_capture({name!r}): the software mps device has no Metal capture; "
        "it needs an Apple GPU."
    )


def _replace_compile_shader() -> None:
    """Replaces torch's own function, which writes its headers into the source; here the front end includes them, and so
    knows the user's line numbers."""

    @functools.wraps(torch.mps.compile_shader)
    def compile_shader(source: str):
        if not isinstance(source, str):
            raise TypeError(
                f"compile_shader(): argument 'source' must be str, not {type(source).__name__}"
            )
        return mps_function("compileShader")(source)

    torch.mps.compile_shader = compile_shader


def _patch_storages() -> None:
    storage = torch.UntypedStorage
    original_new = storage.__new__
    original_resize = storage.resize_
    allocator = _host.allocator_address()

    @functools.wraps(original_new)
    def new(cls, *args, device=None, **kwargs):
        if device is not None and torch.device(device).type == "mps":
            return original_new(cls, *args, allocator=allocator, **kwargs)
        if device is not None:
            kwargs["device"] = device
        return original_new(cls, *args, **kwargs)

    @functools.wraps(original_resize)
    def resize_(self, size):
        if self.device.type != "mps":
            return original_resize(self, size)
        _host.resize_storage(self, size)
        return self

    storage.__new__ = staticmethod(new)
    storage.resize_ = resize_
