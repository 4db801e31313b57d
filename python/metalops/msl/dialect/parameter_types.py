"""Whether parameters of overloads can be told apart by their types, once address spaces are erased or not."""

from __future__ import annotations

import re

from ..analysis.spaces import chain, decayed, differ, nested
from ..analysis.types import Type

# Types of the library, to which nothing converts.
_ALONE = re.compile(
    r"(?:metal::)?(?:(?:bool|integral)_constant\b|(?:true|false)_type$|sampler$"
    r"|(?:texture(?:\dd|cube|_buffer)|depth(?:2d|cube))(?:_ms)?(?:_array)?\b)"
)


def spaces_named(type_: Type) -> tuple[str, ...]:
    """Returns the address spaces that a parameter's type names."""
    if type_.kind == "reference":
        inside = nested(type_.target) if type_.target.kind == "value" else ()
        return (type_.target.space or "thread", *chain(type_.target), *inside)
    if type_.kind in ("pointer", "array"):
        is_told = type_.kind == "pointer" or type_.space
        return (*(chain(decayed(type_)) if is_told else ("thread",)), *nested(end_of(type_)))
    return nested(type_)


def conflict(one: Type, other: Type) -> bool:
    """Returns true if the address spaces of two parameters, and nothing else that is certain, tell them apart."""
    spaces = spaces_named(one), spaces_named(other)
    if spaces[0] and spaces[1]:
        return any(a != b for a, b in zip(*spaces, strict=False))
    if not spaces[0] and not spaces[1]:
        return False
    plain = other if spaces[0] else one
    return plain.is_open or (one if spaces[0] else other).kind == "reference"


def are_apart(one: Type, other: Type) -> bool:
    """Returns true if no argument converts to both of two parameters, whatever its address space is."""
    if one.kind == other.kind == "pointer":
        return differ(end_of(one), end_of(other)) and len(chain(one)) == len(chain(other))
    if one.kind == other.kind == "reference" and not (one.target.is_const or other.target.is_const):
        return differ(end_of(one), end_of(other))
    for array, value in ((one, other), (other, one)):
        if array.kind == "reference" and array.target.kind == "array" and value.kind == "value":
            return not value.is_open
    for pointer, value in ((one, other), (other, one)):
        if pointer.kind == "pointer" and value.kind == "value" and not value.is_open:
            return is_builtin(value)
    for value, reference in ((one, other), (other, one)):
        if value.kind == "value" and reference.kind == "reference":
            return _ALONE.match(value.name) is not None
    return False


def is_builtin(type_: Type) -> bool:
    return differ(type_, Type("value", None, None, "int")) or differ(
        type_, Type("value", None, None, "float")
    )


def end_of(type_: Type) -> Type:
    while type_.target is not None:
        type_ = type_.target
    return type_
