"""Subscripts with several indices, as tensors have, which NVRTC's C++ lacks: they become one index, an array."""

from __future__ import annotations

from ...dialect import names
from ...dialect.rewrite import Rewritten


def join_subscripts(rewritten: Rewritten) -> None:
    source = rewritten.program.source
    for node in source.find("(subscript_expression) @s"):
        indices = node.child_by_field_name("indices")
        values = [c for c in indices.named_children if c.type != "comment"]
        if len(values) > 1 and not rewritten.is_removed(node.start_byte):
            start, end = values[0].start_byte, values[-1].end_byte
            rewritten.edits.wrap(start, end, f"{names.SUPPORT}::indices(", ")")
