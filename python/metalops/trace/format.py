"""The file of a trace: an archive (archive.py) of trace.json, the Metal sources and the contents of memory.

schema.py reads what passes. A trace is data: loading one runs nothing. (Replaying it runs its kernels.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from . import archive, schema

VERSION = 2
_KIND = "metalops trace"
_DOCUMENT = "trace.json"


class TraceError(ValueError):
    """A file is not a trace, is damaged, or is of another version."""


_FORMAT = archive.Format(
    _DOCUMENT,
    _KIND,
    VERSION,
    TraceError,
    foreign="is not a trace of metalops",
    unreadable="is not a trace of metalops, or is damaged",
)


@dataclass(frozen=True)
class Memory:
    """An allocation. dtype, sizes, strides: of the first tensor through which a kernel got it; dtype is None for other
    memory."""

    bytes: int
    dtype: str | None = None
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Write:
    """A write of the host to a memory: contents (a name), or the kind of contents that were too large.

    generator: {"kind": "normal"}, {"kind": "uniform", "low": l, "high": h}, {"kind": "integers", "low": l, "high": h}
    (both may occur), {"kind": "bernoulli", "probability": p}, {"kind": "nothing"} for uninitialised memory.
    """

    memory: int
    contents: str | None = None
    generator: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Argument:
    """The binding of a buffer: an offset in a memory, or bytes that are passed with the launch (value, hexadecimal).

    tensor: (dtype, sizes, strides) if it is one. addresses: (position in the bytes, memory, offset in it) of the
    addresses among them.
    """

    index: int
    memory: int | None = None
    offset: int = 0
    writable: bool = False
    tensor: tuple[str, tuple[int, ...], tuple[int, ...]] | None = None
    value: str | None = None
    addresses: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class BoundTexture:
    """The binding of a texture. description: the bytes of metalops.texture's, hexadecimal. levels: the memory of each, and
    the offset in it."""

    index: int
    description: str
    levels: tuple[tuple[int, int], ...]
    writable: bool = False


@dataclass(frozen=True)
class Launch:
    """A kernel's run. samplers: their bits by index. constants: hexadecimal bytes by index of function constant. results: contents by memory after it,
    of the memories that it may write to and whose contents are all known."""

    source: str
    kernel: str
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    threadgroup_bytes: Mapping[int, int] = field(default_factory=dict)
    constants: Mapping[int, str] = field(default_factory=dict)
    textures: tuple[BoundTexture, ...] = ()
    samplers: Mapping[int, int] = field(default_factory=dict)
    results: Mapping[int, str] = field(default_factory=dict)

    @property
    def accesses(self) -> list[tuple[int, bool]]:
        """Each memory that it may access, and whether it may write to it: buffers, addresses in them, and textures."""
        found = [(a.memory, a.writable) for a in self.arguments if a.memory is not None]
        found += [(memory, True) for a in self.arguments for _, memory, _ in a.addresses]
        return found + [(memory, t.writable) for t in self.textures for memory, _ in t.levels]


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
    """Writes a trace; leaves nothing at the path on failure."""
    document = {
        "kind": _KIND,
        "version": VERSION,
        "made_by": trace.made_by,
        "memories": [_plain(m) for m in trace.memories],
        "events": [{type(e).__name__.lower(): _plain(e)} for e in trace.events],
    }
    archive.save(path, _DOCUMENT, document, trace.blobs)


def _plain(record: Memory | Write | Argument | BoundTexture | Launch) -> dict:
    """Returns the fields that are not their defaults."""
    plain = {}
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if f.default is not dataclasses.MISSING and value == f.default:
            continue
        if f.default_factory is not dataclasses.MISSING and value == f.default_factory():
            continue
        if f.name in ("arguments", "textures"):
            value = [_plain(a) for a in value]
        plain[f.name] = value
    return plain


def load(path: str | os.PathLike) -> Trace:
    """Reads a trace and checks its consistency. Raises TraceError, OSError."""
    return _FORMAT.load(path, _read)


def _read(opened: zipfile.ZipFile, document: dict) -> Trace:
    description = schema.description(document)
    blobs = {}
    for name, sizes in description.blobs.items():
        size = archive.size(opened, name)
        for expected, what in sizes:
            if expected is None and size > archive.LONGEST:
                raise schema.Misfit(f"{what} has {size} bytes")
            if expected is not None and size != expected:
                raise schema.Misfit(f"{what} has {expected} bytes, its contents have {size}")
        blobs[name] = archive.contents(opened, name)
    return Trace(
        [Memory(**m) for m in description.memories],
        [_event(kind, fields) for kind, fields in description.events],
        blobs,
        description.made_by,
    )


def _event(kind: str, fields: dict) -> Write | Launch:
    if kind == "write":
        return Write(**fields)
    arguments = tuple(Argument(**a) for a in fields["arguments"])
    textures = tuple(BoundTexture(**t) for t in fields.get("textures", ()))
    return Launch(**{**fields, "arguments": arguments, "textures": textures})
