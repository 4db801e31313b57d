"""Call operators that address spaces tell apart. They cannot have names of their own, as other overloads get
(overloads.py): they get a first parameter, `msl_in<N>`, and calls of objects an argument for it.

A call of what may be an object of any class, or a lambda or a function, gets it by `msl_callable(f)`, which leaves the
argument out where there is no such parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..analysis.lookup import CALL_OPERATOR
from .insertion import Insertion

_DIGITS = {"0": "0", "device": "1", "constant": "2", "threadgroup": "3", "thread": "4"}
_TAG = "msl_in<"
# Before the digits, for those of address spaces and of sets of functions.
_OF_SPACES, _OF_ANY = "9", "8"


def tag_of(suffix: str) -> str:
    """Returns the type that stands for what a name would end with."""
    words = suffix.strip("_").split("_")[1:]
    if words[:1] == ["any"]:
        return f"{_TAG}{_OF_ANY}{words[1]}>"
    return f"{_TAG}{_OF_SPACES}{''.join(_DIGITS.get(w, '5') for w in words)}>"


def suffix_of(entries: list[str]) -> str:
    """Returns what a name ends with that tells the address spaces of its parameters. entries: those of each parameter,
    joined by `_`, or "0"."""
    while entries and entries[-1] == "0":
        entries = entries[:-1]
    return f"_in_{'_'.join(entries)}" if entries else ""


def first_parameter(parameters, source, suffix: str) -> Insertion:
    """Returns the first parameter that a list of parameters gets."""
    start = parameters.start_byte + 1
    text = source.masked[start : parameters.end_byte - 1].strip()
    if text == "void":
        return Insertion(start, tag_of(suffix), parameters.end_byte - 1)
    return Insertion(start, f"{tag_of(suffix)}{', ' if text else ''}")


def tag_in(source, call) -> str | None:
    """Returns the type of the first argument of a call that has one for this parameter already; None of others."""
    given = call.child_by_field_name("arguments").named_children
    text = source.masked_text(given[0]) if given else ""
    return text.partition("(")[0] if text.startswith(_TAG) else None


def tagged(source, call, suffix: str, is_known: bool) -> Iterator[Insertion]:
    """Yields the insertions that give a call an argument for this parameter. is_known: true if what it calls certainly has
    one."""
    callee = call.child_by_field_name("function")
    if not is_known and not is_by_name(source, call):
        yield Insertion(callee.start_byte, "msl_callable(")
        yield Insertion(callee.end_byte, ")")
    given = call.child_by_field_name("arguments")
    is_empty = not source.masked[given.start_byte + 1 : given.end_byte - 1].strip()
    yield Insertion(given.start_byte + 1, f"{tag_of(suffix)}(){'' if is_empty else ', '}")


def is_by_name(source, call) -> bool:
    """Returns true for `x.operator()(...)`. The grammar parses `p->operator()(...)` as `p(...)` with an error, and
    `operator()(...)` as a call of the result of a call."""
    callee = call.child_by_field_name("function")
    between = source.masked[callee.start_byte : call.child_by_field_name("arguments").start_byte]
    return re.search(r"\boperator\s*(?:\(\s*\)|<)?\s*$", between) is not None


def other_uses(source, calls: list) -> Iterator[int]:
    """Yields the offsets of names of call operators that are not called, `&s::operator()`. calls: the calls of objects."""
    called = {
        offset
        for call in calls
        if is_by_name(source, call)
        for offset in range(call.start_byte, call.child_by_field_name("arguments").start_byte)
    }
    for node in source.find("(operator_name) @n"):
        name = re.sub(r"\s", "", source.masked_text(node))
        if name == CALL_OPERATOR and node.start_byte not in called:
            yield node.start_byte
