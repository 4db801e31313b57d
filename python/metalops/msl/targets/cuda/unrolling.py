"""Keeps the unrolling hints of loops. NVRTC unrolls fewer loops than Apple's compiler by itself, and private arrays
with indices that are not compile-time constants are in local memory, not in registers.

`#pragma unroll [N]`, `#pragma nounroll` and `#pragma clang loop unroll(...)`, as text or by _Pragma, and the attribute
[[unroll]] before a loop become NVRTC's own pragma. Other hints are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...dialect.rewrite import Rewritten
from ...source.tree import LOOPS

_PRAGMA = re.compile(r"(?m)^[ \t]*#[ \t]*pragma[ \t]+(?:(GCC|clang)[ \t]+)?(.*)$")
_UNROLL = re.compile(r"(no)?unroll\b[ \t]*(.*)")
_OF_CLANG = re.compile(r"\bunroll(_count)?[ \t]*\(([^()]*(?:\([^()]*\))?[^()]*)\)")
_WORDS = {"full": "unroll", "enable": "unroll", "disable": "unroll 1"}


def unrolled_loops(rewritten: Rewritten) -> dict[int, str]:
    """Returns the offsets of the loops with a hint in the program, and the pragma for each."""
    source = rewritten.program.source
    return {
        source.next_code(end): hint
        for end, hint in _hints(rewritten)
        if _is_loop_at(source, source.next_code(end))
    }


def keep_unrolling(rewritten: Rewritten) -> None:
    for start, hint in unrolled_loops(rewritten).items():
        if not rewritten.is_removed(start):
            rewritten.edits.insert(start, f'_Pragma("{hint}") ')


def _hints(rewritten: Rewritten) -> Iterator[tuple[int, str]]:
    """Yields the ends of pragmas and attributes about loops, and the pragma that each becomes."""
    source = rewritten.program.source
    for match in _PRAGMA.finditer(source.text):
        hint = _hint(match[1], match[2].strip())
        if hint is not None:
            yield match.end(), hint
    for item in source.attribute_lists:
        for attribute in item.attributes:
            if attribute.name.rpartition("::")[2] in ("unroll", "opencl_unroll_hint"):
                yield item.end, f"unroll {attribute.arguments or ''}".strip()


def _hint(vendor: str | None, text: str) -> str | None:
    if vendor == "clang":
        found = _OF_CLANG.search(text) if text.startswith("loop") else None
        if found is None:
            return None
        return f"unroll ({found[2]})" if found[1] else _WORDS.get(found[2].strip())
    found = _UNROLL.match(text)
    if found is None:
        return None
    return "unroll 1" if found[1] else f"unroll {found[2]}".strip()


def _is_loop_at(source, offset: int) -> bool:
    node = source.root.descendant_for_byte_range(offset, offset)
    while node is not None and node.start_byte == offset:
        if node.type in LOOPS:
            return True
        node = node.parent
    return False
