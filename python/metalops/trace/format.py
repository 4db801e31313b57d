"""The file of a trace: a ZIP archive of trace.json, the Metal sources and the contents of memory.

Sources and contents are named after their SHA-256, so what occurs twice is stored once. A trace is data: loading one runs
nothing. (Replaying it runs its kernels.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

VERSION = 1
_KIND = "metalops trace"


class TraceError(ValueError):
    """A file is not a trace, is damaged, or is of another version."""


@dataclass(frozen=True)
class Memory:
    """An allocation. dtype, sizes, strides: of the tensor that first showed it to a kernel; dtype is None for other memory."""

    bytes: int
    dtype: str | None = None
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Write:
    """What the host put into a memory: contents (a name), or of what kind they are, for those that were too large.

    generator: {"kind": "normal"}, {"kind": "uniform", "low": l, "high": h}, {"kind": "integers", "low": l, "high": h} (both may occur), {"kind": "bernoulli",
    "probability": p}, {"kind": "nothing"} for memory that nobody had written to.
    """

    memory: int
    contents: str | None = None
    generator: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Argument:
    """What is bound to a buffer: a place in a memory, or bytes that come with the launch (value, hexadecimal).

    tensor: (dtype, sizes, strides) if it is one. addresses: (position in the bytes, memory, offset in it) of the addresses
    among them.
    """

    index: int
    memory: int | None = None
    offset: int = 0
    writable: bool = False
    tensor: tuple[str, tuple[int, ...], tuple[int, ...]] | None = None
    value: str | None = None
    addresses: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class Launch:
    """A kernel's run. constants: hexadecimal bytes by index of function constant. results: contents by memory after it, of
    those memories that it may write to and whose contents are all known."""

    source: str
    kernel: str
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    threadgroup_bytes: Mapping[int, int] = field(default_factory=dict)
    constants: Mapping[int, str] = field(default_factory=dict)
    results: Mapping[int, str] = field(default_factory=dict)


@dataclass
class Trace:
    """events: in the order in which they happened. blobs: sources and contents by name. made_by: versions and device."""

    memories: list[Memory] = field(default_factory=list)
    events: list[Write | Launch] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    made_by: dict[str, str] = field(default_factory=dict)

    def add_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self.blobs.setdefault(name, bytes(data))
        return name

    @property
    def launches(self) -> list[Launch]:
        return [e for e in self.events if isinstance(e, Launch)]


def save(trace: Trace, path: str | os.PathLike) -> None:
    """Writes a trace; nothing is left at the path where that fails."""
    path = os.fspath(path)
    document = {
        "kind": _KIND,
        "version": VERSION,
        "made_by": trace.made_by,
        "memories": [_plain(m) for m in trace.memories],
        "events": [{type(e).__name__.lower(): _plain(e)} for e in trace.events],
    }
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("trace.json", json.dumps(document))
            for name, data in trace.blobs.items():
                archive.writestr(name, data)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _plain(record: Memory | Write | Argument | Launch) -> dict:
    """The fields that are not their defaults."""
    plain = {}
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if f.default is not dataclasses.MISSING and value == f.default:
            continue
        if f.default_factory is not dataclasses.MISSING and value == f.default_factory():
            continue
        if f.name == "arguments":
            value = [_plain(a) for a in value]
        plain[f.name] = value
    return plain


def load(path: str | os.PathLike) -> Trace:
    """Reads a trace and checks that it fits together. Raises TraceError, OSError."""
    path = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            document = json.loads(archive.read("trace.json"))
            if not isinstance(document, dict) or document.get("kind") != _KIND:
                raise TraceError(f"{path} is not a trace of metalops")
            if document.get("version") != VERSION:
                raise TraceError(
                    f"{path} is of version {document.get('version')} of the format; this metalops reads version {VERSION}"
                )
            blobs = {n: archive.read(n) for n in archive.namelist() if n != "trace.json"}
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is not a trace of metalops, or is damaged: {error}") from None
    try:
        trace = Trace(
            [_memory(m) for m in document["memories"]],
            [_event(e) for e in document["events"]],
            blobs,
            {str(k): str(v) for k, v in document["made_by"].items()},
        )
        _check(trace)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"{path} is damaged: {error}") from None
    return trace


def _memory(plain: dict) -> Memory:
    sizes, strides = (tuple(map(int, plain.get(k, ()))) for k in ("sizes", "strides"))
    return Memory(int(plain["bytes"]), plain.get("dtype"), sizes, strides)


def _event(plain: dict) -> Write | Launch:
    ((kind, fields),) = plain.items()
    if kind == "write":
        return Write(**fields)
    if kind != "launch":
        raise ValueError(f"unknown event {kind!r}")
    fields = dict(fields)
    for name in ("grid", "group"):
        fields[name] = tuple(map(int, fields[name]))
    fields["arguments"] = tuple(map(_argument, fields["arguments"]))
    for name in ("threadgroup_bytes", "constants", "results"):
        fields[name] = {int(k): v for k, v in fields.get(name, {}).items()}
    return Launch(**fields)


def _argument(plain: dict) -> Argument:
    fields = dict(plain)
    if fields.get("tensor") is not None:
        dtype, sizes, strides = fields["tensor"]
        fields["tensor"] = (dtype, tuple(map(int, sizes)), tuple(map(int, strides)))
    fields["addresses"] = tuple(tuple(map(int, a)) for a in fields.get("addresses", ()))
    return Argument(**fields)


def _check(trace: Trace) -> None:
    """Raises ValueError or KeyError where something speaks of what is not there."""
    for event in trace.events:
        if isinstance(event, Write):
            _check_contents(trace, event.memory, event.contents)
            continue
        trace.blobs[event.source]
        if len(event.grid) != 3 or len(event.group) != 3 or min(*event.grid, *event.group) < 0:
            raise ValueError(f"a launch of {event.kernel!r} has no proper grid")
        for argument in event.arguments:
            places = [(memory, offset) for _, memory, offset in argument.addresses]
            if argument.memory is not None:
                places.append((argument.memory, argument.offset))
            for memory, offset in places:
                if memory < 0 or not 0 <= offset <= trace.memories[memory].bytes:
                    raise ValueError(f"buffer {argument.index} of {event.kernel!r} is nowhere")
            size = len(bytes.fromhex(argument.value or ""))
            if argument.memory is not None:
                size = trace.memories[argument.memory].bytes
            if any(not 0 <= at <= size - 8 for at, _, _ in argument.addresses):
                raise ValueError(f"buffer {argument.index} of {event.kernel!r} has no such address")
        for memory, contents in event.results.items():
            _check_contents(trace, memory, contents)


def _check_contents(trace: Trace, memory: int, contents: str | None) -> None:
    if memory < 0:
        raise ValueError(f"there is no memory {memory}")
    expected = trace.memories[memory].bytes
    if contents is not None and len(trace.blobs[contents]) != expected:
        raise ValueError(f"memory {memory} has {expected} bytes, its contents have another size")
