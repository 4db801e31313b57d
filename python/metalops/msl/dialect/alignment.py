"""Has the compiler's sanitizer check the alignment of vectors that a program reads and writes through pointers: compilers
check it where a reference is bound, and clang not where a vector is copied."""

from __future__ import annotations

import re

from ..analysis.spaces import spaces_of
from . import names
from .rewrite import Rewritten

_VECTOR = re.compile(
    r"(?:metal::)?(?:u?(?:char|short|int|long)|bool|half|bfloat|float)[234]$|(?:metal::)?vec ?<"
)


def check_alignment(rewritten: Rewritten) -> None:
    """Binds a reference wherever `*p` or `p[i]` means a vector in memory."""
    source, spaces = rewritten.program.source, rewritten.program.kept(spaces_of)
    for node in source.find("[(pointer_expression) (subscript_expression)] @n"):
        if node.has_error or not (
            node.type == "subscript_expression"
            or source.node_text(node.child_by_field_name("operator")) == "*"
        ):
            continue
        pointer = spaces.type_of(node.child_by_field_name("argument"))
        if pointer is None or pointer.kind != "pointer" or rewritten.is_removed(node.start_byte):
            continue
        target = pointer.target
        is_vector = target.kind == "value" and (
            _VECTOR.match(target.name) or spaces.types.is_template_parameter(target.name)
        )
        if is_vector:
            rewritten.edits.wrap(node.start_byte, node.end_byte, f"{names.SUPPORT}::aligned(", ")")
