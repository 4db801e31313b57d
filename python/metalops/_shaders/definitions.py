"""Writes function constants and threadgroup memory into the text of a Metal source.

torch's classes on a Mac create kernels without the values of function constants, and do not expose Metal's
setThreadgroupMemoryLength. In the text a constant is defined where it was declared, and a threadgroup argument becomes
memory that the kernel declares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .declared import Declared, number_in
from .values import literal_of

_HIDDEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_CONSTANT = re.compile(
    r"\bconstant\s+(?P<type>[\w:\s]+?)\s+(?P<name>\w+)\s*\[\[\s*function_constant\s*\([^;]*?\)\s*\]\]\s*;"
)
_IS_DEFINED = re.compile(
    r"\b(?:metal\s*::\s*)?is_function_constant_defined\s*\(\s*(?:\w+\s*::\s*)*(?P<name>\w+)\s*\)"
)
_IN_ARGUMENT = re.compile(
    r"\[\[\s*function_constant\s*\([^()]*\)\s*\]\]|,\s*function_constant\s*\([^()]*\)"
)
_MEMORY = re.compile(
    r"(?P<before>,\s*)?\bthreadgroup\s+(?P<type>[\w:<>,\s]+?)\s*\*\s*(?P<name>\w*)\s*"
    r"\[\[\s*threadgroup\s*\(\s*(?P<index>[^()]+?)\s*\)\s*\]\](?P<after>\s*,)?"
)
_BODY = re.compile(r"\s*(?:\[\[.*?\]\]\s*)*\{", re.DOTALL)


def define(
    source: str, declared: Declared, constants: Mapping[int, bytes], memory: Mapping[int, int]
) -> str:
    """Returns the source with the values of constants and with threadgroup memory of those sizes. Lines stay where they
    are.

    Raises ValueError for declarations that are not in the text as one each: macros that hold them, several in a row.
    """
    return _with_memory(_with_constants(source, declared, constants), declared, memory)


def _with_constants(source: str, declared: Declared, values: Mapping[int, bytes]) -> str:
    known = {c.name: c for c in declared.constants}
    missing = {c.name for c in declared.constants if c.index in values}

    def definition(match: re.Match) -> str | None:
        constant = known.get(match["name"])
        if constant is None:
            return None
        missing.discard(constant.name)
        value = literal_of(values.get(constant.index), constant.type)
        return f"constant {match['type']} {constant.name} = {value};"

    def is_defined(match: re.Match) -> str | None:
        constant = known.get(match["name"])
        return constant and ("true" if constant.index in values else "false")

    source = _replaced(source, _CONSTANT, definition)
    if missing:
        raise ValueError(
            f"function constant {min(missing)!r} is not declared on its own in the text, `constant TYPE NAME "
            "[[function_constant(INDEX)]];`, which a Mac needs to give it a value"
        )
    if known:
        source = _replaced(source, _IS_DEFINED, is_defined)
        source = _replaced(source, _IN_ARGUMENT, lambda match: "")
    return source


def _with_memory(source: str, declared: Declared, sizes: Mapping[int, int]) -> str:
    by_name: dict[str, set[int]] = {}
    for arguments in declared.memory.values():
        for index, name in arguments.items():
            by_name.setdefault(name, set()).add(index)
    missing = set(sizes)
    inserted: dict[int, str] = {}  # by offset

    def index_of(match: re.Match) -> int | None:
        index = number_in(match["index"])
        meant = by_name.get(match["name"], set())
        return index if index is not None else min(meant) if len(meant) == 1 else None

    masked = _masked(source)
    for match in _MEMORY.finditer(masked):
        index = index_of(match)
        body = _BODY.match(masked, _end_of_list(masked, match.end()))
        if index in sizes and body is not None:
            name, element = match["name"], " ".join(match["type"].split())
            count = (sizes[index] + 15) // 16
            inserted[body.end()] = inserted.get(body.end(), "") + (
                f" threadgroup uint4 metalops_{name}[{count}]; threadgroup {element}* {name} = "
                f"(threadgroup {element}*)metalops_{name};"
            )
            missing.discard(index)
    if missing:
        raise ValueError(
            f"threadgroup argument {min(missing)} is not in the text as `threadgroup TYPE* NAME [[threadgroup(INDEX)]]`, "
            "which a Mac needs to give it memory"
        )
    for offset in sorted(inserted, reverse=True):
        source = source[:offset] + inserted[offset] + source[offset:]
    return _replaced(
        source,
        _MEMORY,
        lambda match: (
            None
            if index_of(match) not in sizes
            else ", "
            if match["before"] and match["after"]
            else ""
        ),
    )


def _masked(source: str) -> str:
    """Returns the text with comments and strings blanked, of the same length."""
    return _HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def _replaced(
    source: str, pattern: re.Pattern, replacement: Callable[[re.Match], str | None]
) -> str:
    """Replaces matches outside of comments and strings; a match stays if the replacement is None."""
    pieces, end = [], 0
    for match in pattern.finditer(_masked(source)):
        text = replacement(match)
        if text is not None:
            pieces += [source[end : match.start()], text, "\n" * match[0].count("\n")]
            end = match.end()
    return "".join(pieces) + source[end:]


def _end_of_list(masked: str, offset: int) -> int:
    """Returns the offset after the bracket that ends the parameter list around an offset."""
    depth = 0
    for i in range(offset, len(masked)):
        depth += (masked[i] == "(") - (masked[i] == ")")
        if depth < 0:
            return i + 1
    return len(masked)
