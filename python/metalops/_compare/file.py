"""The file of a call whose result differs: an archive (trace/archive.py) of comparison.json and the contents of memory.

It is data: loading it runs nothing and unpickles nothing. Values that JSON lacks are objects with one entry, the kind.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..trace import archive, numbers
from ..trace.schema import ITEM_BYTES, Misfit
from .arguments import Place, Snapshot
from .differences import Difference

VERSION = 1
KIND = "metalops comparison"
DOCUMENT = "comparison.json"
# Larger memories are described by the kind of their numbers.
_MOST_KEPT = 2**26
_MOST_BYTES = 2**36
_MOST_DIMENSIONS = 64


class ComparisonFileError(ValueError):
    """A file has no comparison, is damaged, or is of another version."""


_FORMAT = archive.Format(
    DOCUMENT,
    KIND,
    VERSION,
    ComparisonFileError,
    foreign="has no comparison of metalops",
    unreadable="is damaged",
)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an operator ("aten::addmm.out"). arguments: (args, kwargs) before it. state: of the generator that it drew
    from, if it is random."""

    operator: str
    arguments: Snapshot
    state: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The contents of a file. text: what was said of the difference. is_gradient: whether the call was of a backward pass.
    is_generated: whether some contents were too large to be kept, and others of their kind are in their place."""

    call: Call
    text: str
    is_gradient: bool
    is_generated: bool
    made_by: dict[str, str]


def save(path: str | os.PathLike, difference: Difference, call: Call) -> None:
    """Writes a call and its difference; leaves nothing at the path on failure."""
    blobs: dict[str, bytes] = {}
    dtypes = {place.memory: place.dtype for place in call.arguments.places}
    document = {
        "kind": KIND,
        "version": VERSION,
        "made_by": difference.versions,
        "operator": call.operator,
        "backward": difference.backward,
        "difference": str(difference),
        "arguments": _encoded(list(call.arguments.tree[0])),
        "keywords": {k: _encoded(v) for k, v in call.arguments.tree[1].items()},
        "memories": [
            _memory(memory, dtypes[i], blobs) for i, memory in enumerate(call.arguments.memories)
        ],
        "state": None if call.state is None else _blob(call.state, blobs),
    }
    archive.save(path, DOCUMENT, document, blobs)


def _memory(memory: Tensor, dtype: torch.dtype, blobs: dict[str, bytes]) -> dict:
    if memory.numel() <= _MOST_KEPT:
        return {"bytes": memory.numel(), "contents": _blob(memory, blobs)}
    whole = memory[: memory.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return {"bytes": memory.numel(), "dtype": str(dtype)[6:], "generator": numbers.kind_of(whole)}


def _blob(data: Tensor, blobs: dict[str, bytes]) -> str:
    raw = bytes(data.contiguous().untyped_storage())
    name = hashlib.sha256(raw).hexdigest()
    blobs[name] = raw
    return name


def _encoded(x: Any) -> Any:
    if x is None or isinstance(x, (bool, int, str)):
        return x
    if isinstance(x, float):
        return {"float": x.hex()}
    if isinstance(x, complex):
        return {"complex": [x.real.hex(), x.imag.hex()]}
    if isinstance(x, (list, tuple)):
        return [_encoded(one) for one in x]
    if isinstance(x, Place):
        plain = dataclasses.asdict(x)
        return {"tensor": {**plain, "dtype": str(x.dtype)[6:]}}
    if isinstance(x, (torch.dtype, torch.layout, torch.memory_format)):
        return {type(x).__name__: str(x).removeprefix("torch.")}
    if isinstance(x, (torch.device, torch.Generator)):
        device = x if isinstance(x, torch.device) else x.device
        return {type(x).__name__.lower(): device.type}
    raise TypeError(f"compare: an argument of {type(x).__name__} cannot be written to a file")


# ---- reading -------------------------------------------------------------------------------------


def is_comparison(path: str | os.PathLike) -> bool:
    """Returns true if a file is an archive with a comparison. Raises OSError if it cannot be read."""
    with open(path, "rb") as stream:
        if not zipfile.is_zipfile(stream):
            return False
        try:
            with zipfile.ZipFile(stream) as opened:
                return DOCUMENT in opened.namelist()
        except Exception:  # of many kinds; the reader of traces says what is wrong
            return False


def load(path: str | os.PathLike) -> Loaded:
    """Reads a file and checks all of it. Raises ComparisonFileError, OSError."""
    return _FORMAT.load(path, _read)


def _read(opened: zipfile.ZipFile, document: dict) -> Loaded:
    memories = [_read_memory(opened, m) for m in _the(list, document, "memories")]
    tree = (
        tuple(_decoded(x) for x in _the(list, document, "arguments")),
        {k: _decoded(x) for k, x in _the(dict, document, "keywords").items()},
    )
    arguments = Snapshot(tree, memories)
    for place in arguments.places:
        _check_place(place, memories)
    state = document.get("state")
    return Loaded(
        Call(
            _the(str, document, "operator"),
            arguments,
            None if state is None else _tensor_of(archive.contents(opened, state)),
        ),
        _the(str, document, "difference"),
        _the(bool, document, "backward"),
        any("generator" in m for m in document["memories"]),
        {str(k): str(v) for k, v in _the(dict, document, "made_by").items()},
    )


def _the(kind: type, document: dict, name: str) -> Any:
    value = document.get(name)
    if type(value) is not kind:
        raise Misfit(f"{name} is no {kind.__name__}")
    return value


def _tensor_of(data: bytes) -> Tensor:
    # A copy in memory of torch's, which is aligned for all dtypes.
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()


def _read_memory(opened: zipfile.ZipFile, described: Any) -> Tensor:
    if not isinstance(described, dict):
        raise Misfit("a memory is no object")
    size = _the(int, described, "bytes")
    if not 0 <= size <= _MOST_BYTES:
        raise Misfit(f"a memory has {size} bytes")
    if "contents" in described:
        data = archive.contents(opened, _the(str, described, "contents"))
        if len(data) != size:
            raise Misfit(f"a memory has {size} bytes, its contents have {len(data)}")
        return _tensor_of(data)
    dtype = _dtype(described.get("dtype"))
    memory = torch.zeros(size, dtype=torch.uint8)
    whole = memory[: size // dtype.itemsize * dtype.itemsize].view(dtype)
    numbers.make(whole, _the(dict, described, "generator"), torch.Generator().manual_seed(0))
    return memory


def _dtype(name: Any) -> torch.dtype:
    if not isinstance(name, str) or name not in ITEM_BYTES:
        raise Misfit(f"{name!r:.40} is no dtype")
    return getattr(torch, name)


def _decoded(x: Any) -> Any:
    if isinstance(x, list):
        return [_decoded(one) for one in x]
    if not isinstance(x, dict):
        return x
    if len(x) != 1 or (kind := next(iter(x))) not in _KINDS:
        raise Misfit(f"{str(x)[:40]} is no value")
    return _KINDS[kind](x[kind])


def _place(x: Any) -> Place:
    names = [field.name for field in dataclasses.fields(Place)]
    if not isinstance(x, dict) or sorted(x) != sorted(names):
        raise Misfit("a tensor lacks some of its fields")
    sizes, strides = _the(list, x, "sizes"), _the(list, x, "strides")
    counts = [x["memory"], x["offset"], x["storage_offset"], *sizes, *strides]
    if any(type(n) is not int or not 0 <= n < 2**62 for n in counts):
        raise Misfit("a tensor has sizes, strides or offsets that are no numbers in range")
    if len(sizes) != len(strides) or len(sizes) > _MOST_DIMENSIONS:
        raise Misfit("a tensor has other numbers of sizes and of strides")
    if x["device"] not in ("cpu", "mps"):
        raise Misfit("a tensor is on an unknown device")
    bits = _the(bool, x, "is_conj"), _the(bool, x, "is_neg")
    return Place(
        x["memory"],
        x["offset"],
        _dtype(x["dtype"]),
        tuple(sizes),
        tuple(strides),
        x["device"],
        x["storage_offset"],
        *bits,
    )


def _check_place(place: Place, memories: list[Tensor]) -> None:
    if place.memory >= len(memories):
        raise Misfit(f"there is no memory {place.memory}")
    last = sum((n - 1) * step for n, step in zip(place.sizes, place.strides))
    is_empty = 0 in place.sizes
    end = (place.offset + (0 if is_empty else last + 1)) * place.dtype.itemsize
    if end > memories[place.memory].numel():
        raise Misfit("a tensor is larger than its memory")
    if place.is_conj and not place.dtype.is_complex:
        raise Misfit("a tensor of real numbers is conjugated")


def _of_torch(kind: type) -> Callable[[Any], Any]:
    def find(name: Any) -> Any:
        found = getattr(torch, name, None) if isinstance(name, str) else None
        if not isinstance(found, kind):
            raise Misfit(f"{str(name)[:40]} is no {kind.__name__}")
        return found

    return find


def _device(name: Any) -> torch.device:
    if name not in ("cpu", "mps"):
        raise Misfit(f"{str(name)[:40]} is no device")
    return torch.device(name)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: float.fromhex(x),
    "complex": lambda x: complex(float.fromhex(x[0]), float.fromhex(x[1])),
    "tensor": _place,
    "dtype": _of_torch(torch.dtype),
    "layout": _of_torch(torch.layout),
    "memory_format": _of_torch(torch.memory_format),
    "device": _device,
    "generator": lambda x: torch.Generator(_device(x)),
}
