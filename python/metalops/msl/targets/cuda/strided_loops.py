"""Loops in which the threads of a group take turns: for (i = lane; i < n; i += lanes).

A thread that waits for one element at a time leaves most of a GPU's memory bandwidth unused, and NVRTC does not unroll a loop
whose number of turns it does not know, unless it is asked to. Four turns at once keep the order in which a thread takes its
elements.
"""

from __future__ import annotations

from ...dialect.rewrite import Rewritten
from ...regions import LOOPS, walk

_UNROLLED = '_Pragma("unroll 4") '
_LONGEST = 400  # characters of a body: larger ones have enough to do, and need their registers
_LEAVING = {"break_statement", "continue_statement", "return_statement", "goto_statement"}


def unroll_strided_loops(rewritten: Rewritten) -> None:
    for function in rewritten.program.functions:
        if function.body is None or rewritten.is_removed(function.node.start_byte):
            continue
        for node in walk(function.body):
            if node.type == "for_statement" and _is_strided(rewritten, node):
                rewritten.edits.append(node.start_byte, _UNROLLED)


def _is_strided(rewritten: Rewritten, loop) -> bool:
    update, body = (loop.child_by_field_name(name) for name in ("update", "body"))
    if update is None or update.type != "assignment_expression" or body is None:
        return False
    if rewritten.program.source.node_text(update.child_by_field_name("operator")) != "+=":
        return False
    if update.child_by_field_name("right").type == "number_literal":
        return False
    if body.end_byte - body.start_byte > _LONGEST:
        return False
    return not any(
        node.type in LOOPS
        or node.type in _LEAVING
        or (node.type == "call_expression" and rewritten.calls.call_synchronises(node))
        for node in walk(body)
    )
