"""Records the launches of operators on the software device."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator

import torch

from .. import _outputs
from .._locks import recursive_lock
from .format import Argument, BoundTexture, Launch, Memory, Trace, Write, save
from .numbers import kind_of

_MOST_SCANNED = 65536  # bytes of a tensor of 64-bit integers that is searched for addresses


class Recorder:
    """Adds launches to a trace."""

    def __init__(self, largest: int | None, run: Callable | None):
        """largest: of the memories whose contents are recorded, in bytes; None: any. run: runs a launch; None: launches
        are not run."""
        self.trace = Trace(made_by=_made_by())
        self.largest = largest
        self.run = run
        self.memories: dict[int, tuple[int, int]] = {}  # begin -> bytes, index in the trace
        self.known: dict[int, bytes | None] = {}  # by index: digest according to the trace
        self.noted: set[int] = set()  # indices of those whose addresses host code has asked for
        self.lock = recursive_lock()

    # ---- a launch --------------------------------------------------------------------------------

    def record(self, launch) -> None:
        with self.lock:
            from metalops import _host

            for begin, size in _host.take_noted_addresses():
                self.noted.add(self._memory(begin, {"bytes": size}))
            bound, textures = launch.arguments, launch.textures
            for one in [*bound, *(level for t in textures for level in t["levels"])]:
                if not one["is_value"] and one["bytes"]:
                    self._memory(one["begin"], one)
            arguments = tuple(self._argument(one) for one in bound)
            event = Launch(
                self.trace.add_blob(zlib.decompress(launch.source)),
                launch.name,
                tuple(launch.grid),
                tuple(launch.group),
                arguments,
                launch.threadgroup_bytes,
                {i: value.hex() for i, value in launch.constants.items()},
                tuple(map(self._texture, textures)),
                launch.samplers,
            )
            shown = list(dict.fromkeys(memory for memory, _ in event.accesses))
            for index in shown:
                self._record_contents(index)
            self.trace.events.append(event)
            if self.run is None:
                return
            self.run(launch)
            results = {i: r for i in shown if (r := self._result(i, event)) is not None}
            self.trace.events[-1] = Launch(**{**vars(event), "results": results})

    def _texture(self, bound: dict) -> BoundTexture:
        levels = bound["levels"]
        return BoundTexture(
            bound["index"],
            bound["description"].hex(),
            tuple((self._memory(b["begin"], b), b["address"] - b["begin"]) for b in levels),
            levels[0]["writable"],
        )

    def _argument(self, bound: dict) -> Argument:
        if bound["is_value"]:
            value = _read(bound["begin"], bound["bytes"])
            addresses = self._addresses(value)
            kept = bytearray(value)
            for at, _, _ in addresses:  # addresses of this process mean nothing in another
                kept[at : at + 8] = bytes(8)
            return Argument(bound["index"], value=kept.hex(), addresses=addresses)
        if bound["bytes"] == 0 or bound["address"] == 0:
            return Argument(bound["index"], value="")
        memory = self._memory(bound["begin"], bound)
        tensor = None
        addresses: tuple = ()
        if "dtype" in bound:
            tensor = (bound["dtype"], bound["sizes"], bound["strides"])
            if bound["dtype"] in ("int64", "uint64") and bound["bytes"] <= _MOST_SCANNED:
                addresses = self._addresses(_read(bound["begin"], bound["bytes"]))
        return Argument(
            bound["index"],
            memory,
            bound["address"] - bound["begin"],
            bound["writable"],
            tensor,
            addresses=addresses,
        )

    def _addresses(self, data: bytes) -> tuple[tuple[int, int, int], ...]:
        """Returns (position, memory, offset) of the words that are addresses which host code has asked for."""
        spans = [(b, size, i) for b, (size, i) in self.memories.items() if i in self.noted]
        words = struct.unpack_from(f"{len(data) // 8}Q", data) if spans else ()
        return tuple(
            (8 * at, index, word - begin)
            for at, word in enumerate(words)
            for begin, size, index in spans
            if begin <= word < begin + size
        )

    # ---- memory ----------------------------------------------------------------------------------

    def _memory(self, begin: int, bound: dict) -> int:
        """Returns the index of an allocation; an earlier one at this address with another size has been freed."""
        size = bound["bytes"]
        known = self.memories.get(begin)
        if known is not None and known[0] == size:
            return known[1]
        for other, (other_size, _) in list(self.memories.items()):
            if other < begin + size and begin < other + other_size:
                del self.memories[other]
        index = len(self.trace.memories)
        self.trace.memories.append(
            Memory(size, bound.get("dtype"), bound.get("sizes", ()), bound.get("strides", ()))
        )
        self.memories[begin] = size, index
        return index

    def _begin(self, index: int) -> int:
        return next(begin for begin, (_, i) in self.memories.items() if i == index)

    def _is_recorded(self, index: int) -> bool:
        return self.largest is None or self.trace.memories[index].bytes <= self.largest

    def _record_contents(self, index: int) -> None:
        """Records a write event, unless the memory has the contents that the trace leaves there."""
        memory = self.trace.memories[index]
        if not self._is_recorded(index):
            if index not in self.known:
                self.known[index] = None
                self.trace.events.append(Write(index, generator=self._generator(index)))
            return
        data = _read(self._begin(index), memory.bytes)
        digest = hashlib.sha256(data).digest()
        if self.known.get(index) != digest:
            self.known[index] = digest
            self.trace.events.append(Write(index, self.trace.add_blob(data)))

    def _result(self, index: int, launch: Launch) -> str | None:
        """Returns the name of the contents of a memory after a launch, if it may have written there and all its inputs
        are known."""
        if (index, True) not in launch.accesses or not self._is_recorded(index):
            return None
        data = _read(self._begin(index), self.trace.memories[index].bytes)
        self.known[index] = hashlib.sha256(data).digest()
        if not all(self._is_recorded(i) for i, _ in launch.accesses):
            # Another run will not reproduce these, since it has other inputs.
            return None
        return self.trace.add_blob(data)

    def _generator(self, index: int) -> dict[str, object]:
        memory = self.trace.memories[index]
        dtype = getattr(torch, memory.dtype, None) if memory.dtype else None
        if dtype is None:
            return {"kind": "nothing"}
        size = memory.bytes // dtype.itemsize * dtype.itemsize
        raw = (ctypes.c_uint8 * size).from_address(self._begin(index))
        return kind_of(torch.frombuffer(raw, dtype=dtype))


def run_by_default(launch) -> None:
    launch.run(launch.engines[0], launch.threads)


def _read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def _made_by() -> dict[str, str]:
    return {"torch": str(torch.__version__), "device": "software Metal device"}


@contextlib.contextmanager
def capture(
    path: str | os.PathLike, contents: bool | int, execute: bool, gpu: bool
) -> Iterator[Trace]:
    """Records launches; see metalops.debug.capture."""
    from metalops import _host, _is_software

    if not _is_software:
        raise NotImplementedError("capture: launches are recorded on the software device")
    if not isinstance(contents, (bool, int)) or contents < 0:
        raise ValueError(f"capture: contents is True, False or a number of bytes, got {contents!r}")
    _outputs.check_file(path)
    largest = None if contents is True else int(contents)
    before = _host.set_launch_hook(None)  # perhaps that of an enclosing capture
    recorder = Recorder(largest, (before or run_by_default) if execute else None)

    def hook(launch) -> None:
        with torch.inference_mode(False), torch.no_grad():
            recorder.record(launch)

    _host.set_launch_hook(hook)
    flavours = _host.set_elementwise_flavour("gpu", "gpu") if gpu else None
    _host.take_noted_addresses()
    try:
        yield recorder.trace
    finally:
        _host.set_launch_hook(before)
        if flavours is not None:
            _host.set_elementwise_flavour(*flavours)
        save(recorder.trace, path)


# The capture that MTLCaptureManager of the Objective-C API has begun (csrc/host/objc/metal/captures.cpp).
_document = contextlib.ExitStack()


def begin_document(path: str) -> None:
    """Records launches from now on, until end_document(), in a trace."""
    _document.enter_context(capture(path, True, True, False))


def end_document() -> None:
    """Ends what begin_document() has begun, and writes the file."""
    _document.close()
