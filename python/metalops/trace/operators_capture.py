"""Records operations on the software device: see operators.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import DispatchKey, TorchDispatchMode, call_with_key, schema
from . import capture
from .operators import Call, Place, Recording, mapped, tensors_of

# Operators that change no element.
_OF_GEOMETRY = {"aten::as_strided_", "aten::resize_", "aten::_unsafe_view"}
# Where the kernel for mps tensors may be registered.
_KEYS = [
    getattr(DispatchKey, name)
    for name in (
        "MPS",
        "CompositeExplicitAutogradNonFunctional",
        "CompositeExplicitAutograd",
        "CompositeImplicitAutograd",
    )
]


def record(function: Callable[..., Any], *arguments: Tensor) -> Recording:
    """Calls function(*arguments), which are mps tensors and which it leaves as they are, and returns what it did. Call it
    once before: what it makes then and keeps, such as constants, would be among the steps.

    Kernels are those for a GPU where they differ from those for a CPU. Raises NotImplementedError on a Mac.
    """
    from metalops import _host, _is_software

    if not _is_software:
        raise NotImplementedError("record: operations are recorded on the software device")
    before = _host.set_launch_hook(None)  # perhaps that of a capture
    recorder = _Recorder(before or capture.run_by_default)
    _host.set_launch_hook(recorder.record)
    flavours = _host.set_elementwise_flavour("gpu", "gpu")
    try:
        with torch.no_grad(), _Operators(recorder):
            result = function(*arguments)
    finally:
        _host.set_launch_hook(before)
        _host.set_elementwise_flavour(*flavours)
    place = recorder.place
    return Recording(
        recorder.trace, tuple(map(place, arguments)), tuple(map(place, tensors_of(result)))
    )


class _Recorder(capture.Recorder):
    """Keeps what comes from the host, not what kernels and operators leave: another run finds that by itself."""

    def __init__(self, run: Callable):
        super().__init__(None, run)

    def _index(self, x: Tensor) -> int | None:
        storage = x.untyped_storage()
        size = storage.nbytes()
        return self._memory(storage.data_ptr(), {"bytes": size}) if size else None

    def _record_contents(self, index: int | None) -> None:
        if index is not None and index not in self.known:
            super()._record_contents(index)

    def _result(self, index, arguments):
        return None

    def show(self, x: Tensor) -> None:
        """Records what is in a tensor's memory, if that comes from the host."""
        self._record_contents(self._index(x))

    def take(self, written: list[Tensor]) -> None:
        """Notes that the trace leaves there what is there now."""
        for index in map(self._index, written):
            if index is not None:
                self.known.setdefault(index, None)

    def forget(self, written: list[Tensor]) -> None:
        """Notes that the host has written there."""
        for index in map(self._index, written):
            self.known.pop(index, None)

    def place(self, x: Tensor) -> Place:
        at = x.storage_offset()
        return Place(
            self._index(x), at, x.dtype, tuple(x.shape), x.stride(), x.is_conj(), x.is_neg()
        )


def _written(func: Any, args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the arguments in place of which an operator puts its results."""
    arguments = schema(func).arguments
    bound = zip(arguments, args, strict=False)
    in_place = [x for a, x in bound if a.alias_info is not None and a.alias_info.is_write]
    named = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
    return tensors_of([in_place, [x for name, x in kwargs.items() if name in named]])


class _Operators(TorchDispatchMode):
    """Puts calls of operators that launch nothing of ours into the trace of a recorder."""

    def __init__(self, recorder: _Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors_of((args, kwargs))
        device = kwargs.get("device")
        made_here = torch.device(device or "cpu").type == "mps"
        if not (all(x.is_mps for x in given) if given else made_here):
            result = func(*args, **kwargs)
            changed = [*_written(func, args, kwargs), *tensors_of(result)]
            self.recorder.forget([x for x in changed if x.is_mps])
            return result
        events = self.recorder.trace.events
        for x in given:
            self.recorder.show(x)
        before = len(events)
        with self:
            key = next(key for key in _KEYS if func.has_kernel_for_dispatch_key(key))
            result = call_with_key(func, key, *args, **kwargs)
        returned = tensors_of(result)
        name, _, overload = func.name().partition(".")
        if name.startswith("aten::empty") or name == "aten::resize_":
            self.recorder.take(returned)
        elif len(events) == before and not func.is_view and name not in _OF_GEOMETRY:
            self._add(name, overload, func, args, kwargs, returned)
        return result

    def _add(self, name, overload, func, args, kwargs, returned) -> None:
        if not returned or not all(x.is_mps for x in returned):
            return
        written = set(map(id, _written(func, args, kwargs)))
        place = self.recorder.place

        def kept(x: Any) -> Any:
            return place(x) if isinstance(x, Tensor) else x

        results = tuple(None if id(x) in written else place(x) for x in returned)
        call = Call(name, overload, mapped(args, kept), mapped(kwargs, kept), results)
        self.recorder.trace.events.append(call)
        self.recorder.take(returned)
