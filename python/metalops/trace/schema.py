"""The schema of a trace's description (trace.json): kinds, bounds, and that all references exist. Everything is checked
before it is used."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .._textures.layout import layout_of

# Bytes of an element, of torch's dtypes by their names.
ITEM_BYTES = {
    **dict.fromkeys(["bool", "uint8", "int8", "float8_e4m3fn", "float8_e4m3fnuz"], 1),
    **dict.fromkeys(["float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"], 1),
    **dict.fromkeys(["int16", "uint16", "float16", "bfloat16"], 2),
    **dict.fromkeys(["int32", "uint32", "float32", "complex32"], 4),
    **dict.fromkeys(["int64", "uint64", "float64", "complex64"], 8),
    "complex128": 16,
}
_MOST_BYTES = 2**48  # of a memory: the range of addresses
_MOST_THREADS = 2**40  # of a grid: minutes of a GPU
_MOST_BUFFERS = 31
_MOST_TEXTURES = 128
_MOST_SAMPLERS = 16
_LARGEST_GROUP = 1024
_MOST_VALUE_BYTES = 2**16
_MOST_CONSTANTS = 2**16
_MOST_ENTRIES = 2**24  # of a list
_HASH = re.compile(r"[0-9a-f]{64}")
_HEXADECIMAL = re.compile(r"(?:[0-9a-fA-F]{2})*")


class Misfit(ValueError):
    """A violation of the schema: what is wrong, and where."""


@dataclass
class Description:
    """memories, events: the fields of format.Memory, and of format.Write ("write") and format.Launch ("launch"). blobs:
    by name, the owners of contents and their sizes in bytes (None: any size)."""

    memories: list[dict] = field(default_factory=list)
    events: list[tuple[str, dict]] = field(default_factory=list)
    made_by: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, set[tuple[int | None, str]]] = field(default_factory=dict)


# Takes a value and its name in errors; returns the parsed value.
Reader = Callable[[object, str], object]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _integer(low: int, high: int) -> Reader:
    def read(value: object, what: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Misfit(f"{what} is {_shown(value)}, which is no integer")
        if not low <= value <= high:
            shown = value if abs(value) < 2**70 else "far"
            raise Misfit(f"{what} is {shown}, which is not between {low} and {high}")
        return value

    return read


def _boolean(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise Misfit(f"{what} is {_shown(value)}, which is neither true nor false")
    return value


def _number(value: object, what: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise Misfit(f"{what} is {_shown(value)}, which is no number")
    if isinstance(value, float) and not math.isfinite(value) or abs(value) > 2**1000:
        raise Misfit(f"{what} is not finite")
    return value


def _text(pattern: re.Pattern, longest: int, kind: str) -> Reader:
    def read(value: object, what: str) -> str:
        if not isinstance(value, str):
            raise Misfit(f"{what} is {_shown(value)}, which is no text")
        if len(value) > longest or not pattern.fullmatch(value):
            raise Misfit(f"{what} is {_shown(value)}, which is no {kind}")
        return value

    return read


_NAME = _text(re.compile(r"[^\0-\x1f]+"), 4096, "name")
_CONTENTS = _text(_HASH, 64, "name of contents")
_VALUE = _text(_HEXADECIMAL, 2 * _MOST_VALUE_BYTES, "hexadecimal number of whole bytes")


def _dtype(value: object, what: str) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in ITEM_BYTES):
        raise Misfit(f"{what} is {_shown(value)}, which is no dtype of torch")
    return value


def _items(one: Reader, count: int | None = None) -> Reader:
    def read(value: object, what: str) -> tuple:
        if not isinstance(value, list):
            raise Misfit(f"{what} is {_shown(value)}, which is no list")
        if len(value) > _MOST_ENTRIES or (count is not None and len(value) != count):
            raise Misfit(f"{what} has {len(value)} entries" + (f", not {count}" if count else ""))
        return tuple(one(v, f"{what}[{i}]") for i, v in enumerate(value))

    return read


def _sequence(*readers: Reader) -> Reader:
    def read(value: object, what: str) -> tuple:
        values = _items(lambda v, _: v, len(readers))(value, what)
        return tuple(
            r(v, f"{what}[{i}]") for i, (r, v) in enumerate(zip(readers, values, strict=True))
        )

    return read


def _by_number(highest: int, one: Reader) -> Reader:
    """Reads an object whose names are numbers."""

    def read(value: object, what: str) -> dict:
        if not isinstance(value, dict):
            raise Misfit(f"{what} is {_shown(value)}, which is no object")
        result = {}
        for key, entry in value.items():
            if not re.fullmatch(r"[0-9]{1,9}", key) or int(key) > highest or int(key) in result:
                raise Misfit(f"{what} has an entry {_shown(key)}")
            result[int(key)] = one(entry, f"{what}[{key}]")
        return result

    return read


def _or_null(one: Reader) -> Reader:
    return lambda value, what: None if value is None else one(value, what)


def _object(required: Mapping[str, Reader], optional: Mapping[str, Reader] | None = None) -> Reader:
    optional = optional or {}

    def read(value: object, what: str) -> dict:
        if not isinstance(value, dict):
            raise Misfit(f"{what} is {_shown(value)}, which is no object")
        for name in required:
            if name not in value:
                raise Misfit(f"{what} lacks {name!r}")
        for name in value:
            if name not in required and name not in optional:
                raise Misfit(f"{what} has {_shown(name)}, which is unknown")
        readers = {**optional, **required}
        return {name: readers[name](entry, f"{what}.{name}") for name, entry in value.items()}

    return read


_EXTENTS = _items(_integer(0, 2**63 - 1))
_STRIDES = _items(_integer(-(2**63), 2**63 - 1))
_MEMORY = _object(
    {"bytes": _integer(0, _MOST_BYTES)},
    {"dtype": _dtype, "sizes": _EXTENTS, "strides": _STRIDES},
)
_GENERATORS = {
    "normal": _object({"kind": _NAME}),
    "nothing": _object({"kind": _NAME}),
    "uniform": _object({"kind": _NAME, "low": _number, "high": _number}),
    "integers": _object(
        {
            "kind": _NAME,
            "low": _integer(-(2**63), 2**64 - 1),
            "high": _integer(-(2**63), 2**64 - 1),
        }
    ),
    "bernoulli": _object({"kind": _NAME, "probability": _number}),
}


def _generator(value: object, what: str) -> dict:
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _GENERATORS:
        raise Misfit(f"{what} is {_shown(value)}, which is no kind of contents")
    result = _GENERATORS[kind](value, what)
    if kind in ("uniform", "integers") and result["low"] > result["high"]:
        raise Misfit(f"{what} goes from {result['low']} to {result['high']}")
    if kind == "bernoulli" and not 0 <= result["probability"] <= 1:
        raise Misfit(f"{what} has a probability of {result['probability']}")
    return result


def _check_generator(generator: Mapping[str, object], dtype: str | None, what: str) -> None:
    """Checks that numbers of a dtype can be of this kind, as numbers.py generates them."""
    kind = generator["kind"]
    if dtype is None or kind == "nothing":
        return
    if "int" in dtype:
        expected = "integers"
        bits = 8 * ITEM_BYTES[dtype]
        low, high = (0, 255) if dtype == "uint8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if kind == expected and not low <= generator["low"] <= generator["high"] <= high:
            raise Misfit(f"{what} has numbers that are not of {dtype}")
    else:
        expected = "bernoulli" if dtype == "bool" else "normal"
    if kind != expected and not (kind == "uniform" and expected == "normal"):
        raise Misfit(f"{what} has contents of kind {kind}, which {dtype} has not")


def _reference(count: int) -> Reader:
    def read(value: object, what: str) -> int:
        index = _integer(-(2**63), 2**63)(value, what)
        if not 0 <= index < count:
            raise Misfit(f"{what} is {index}, and there are {count} memories")
        return index

    return read


def description(document: Mapping[str, object]) -> Description:
    """Reads a description. Raises Misfit."""
    parts = _object(
        {
            "kind": _NAME,
            "version": _integer(0, 1000),
            "made_by": _made_by,
            "memories": _items(_MEMORY),
            "events": _items(_event),
        }
    )(document, "the description")
    result = Description(list(parts["memories"]), [], parts["made_by"])
    reader = _Events(result)
    for number, (kind, fields) in enumerate(parts["events"]):
        result.events.append((kind, getattr(reader, kind)(fields, f"event {number}")))
    return result


def _made_by(value: object, what: str) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > 100:
        raise Misfit(f"{what} is {_shown(value)}, which is no object")
    return {_NAME(k, what): _NAME(v, f"{what}.{k}") for k, v in value.items()}


def _event(value: object, what: str) -> tuple[str, object]:
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= {"write", "launch"}:
        raise Misfit(f"{what} is {_shown(value)}, which is no event")
    return next(iter(value.items()))


class _Events:
    """Reads events, which refer to memories and contents."""

    def __init__(self, result: Description):
        self.memories = result.memories
        self.blobs = result.blobs
        count = len(self.memories)
        memory = _reference(count)
        extent = _items(_integer(0, 2**32 - 1), 3)
        self._write = _object(
            {"memory": memory},
            {"contents": _or_null(_CONTENTS), "generator": _or_null(_generator)},
        )
        self._launch = _object(
            {
                "source": _CONTENTS,
                "kernel": _NAME,
                "grid": extent,
                "group": extent,
                "arguments": _items(self._argument),
            },
            {
                "threadgroup_bytes": _by_number(_MOST_BUFFERS - 1, _integer(0, 2**31)),
                "constants": _by_number(_MOST_CONSTANTS - 1, _VALUE),
                "textures": _items(self._texture),
                "samplers": _by_number(_MOST_SAMPLERS - 1, _integer(0, 2**64 - 1)),
                "results": _by_number(count - 1, _CONTENTS),
            },
        )
        self._texture_fields = _object(
            {
                "index": _integer(0, _MOST_TEXTURES - 1),
                "description": _VALUE,
                "levels": _items(_sequence(memory, _integer(0, _MOST_BYTES))),
            },
            {"writable": _boolean},
        )
        self._argument_fields = _object(
            {"index": _integer(0, _MOST_BUFFERS - 1)},
            {
                "memory": _or_null(memory),
                "offset": _integer(0, _MOST_BYTES),
                "writable": _boolean,
                "tensor": _or_null(_sequence(_dtype, _EXTENTS, _STRIDES)),
                "value": _or_null(_VALUE),
                "addresses": _items(
                    _sequence(_integer(0, _MOST_BYTES), memory, _integer(0, _MOST_BYTES))
                ),
            },
        )

    def write(self, fields: object, what: str) -> dict:
        result = self._write(fields, what)
        if result.get("contents") is not None:
            self._contents(result["contents"], result["memory"])
        if result.get("generator") is not None:
            _check_generator(
                result["generator"], self.memories[result["memory"]].get("dtype"), what
            )
        return result

    def launch(self, fields: object, what: str) -> dict:
        result = self._launch(fields, what)
        what = f"{what}, a launch of {_shown(result['kernel'])},"
        if math.prod(result["grid"]) > _MOST_THREADS:
            raise Misfit(f"{what} has {math.prod(result['grid'])} threads")
        if math.prod(result["group"]) > _LARGEST_GROUP:
            raise Misfit(f"{what} has groups of {math.prod(result['group'])} threads")
        indices = [a["index"] for a in result["arguments"]]
        if len(set(indices)) < len(indices):
            raise Misfit(f"{what} binds a buffer twice")
        indices = [t["index"] for t in result.get("textures", ())]
        if len(set(indices)) < len(indices):
            raise Misfit(f"{what} binds a texture twice")
        self.blobs.setdefault(result["source"], set()).add((None, "a source"))
        for memory, contents in result.get("results", {}).items():
            self._contents(contents, memory)
        return result

    def _argument(self, value: object, what: str) -> dict:
        result = self._argument_fields(value, what)
        memory, bytes_here = result.get("memory"), result.get("value")
        if (memory is None) == (bytes_here is None):
            raise Misfit(f"{what} is a memory or a value, and one of them")
        if memory is not None:
            size = self.memories[memory]["bytes"]
            self._within(memory, result.get("offset", 0), what)
        else:
            size = len(bytes_here) // 2
        for at, other, offset in result.get("addresses", ()):
            self._within(other, offset, what)
            if at > size - 8 or at % 8:
                raise Misfit(f"{what} has no room for an address at byte {at}")
        if result.get("tensor") is not None:
            _check_tensor(result["tensor"], what)
        return result

    def _texture(self, value: object, what: str) -> dict:
        result = self._texture_fields(value, what)
        try:
            ends = layout_of(bytes.fromhex(result["description"])).ends
        except ValueError as error:
            raise Misfit(f"{what} is no texture: {error}") from None
        if len(ends) != len(result["levels"]):
            raise Misfit(f"{what} has {len(ends)} levels, but memory for {len(result['levels'])}")
        for (memory, offset), end in zip(result["levels"], ends, strict=True):
            self._within(memory, offset + end, what)
        return result

    def _within(self, memory: int, offset: int, what: str) -> None:
        size = self.memories[memory]["bytes"]
        if offset > size:
            raise Misfit(f"{what} is at byte {offset} of memory {memory}, which has {size}")

    def _contents(self, name: str, memory: int) -> None:
        size = self.memories[memory]["bytes"]
        self.blobs.setdefault(name, set()).add((size, f"memory {memory}"))


def _check_tensor(tensor: Sequence, what: str) -> None:
    dtype, sizes, strides = tensor
    if dtype is None or len(sizes) != len(strides) or len(sizes) > 64:
        raise Misfit(f"{what} is no tensor")
    if math.prod(sizes) > _MOST_BYTES:
        raise Misfit(f"{what} is a tensor of {math.prod(sizes)} elements")
