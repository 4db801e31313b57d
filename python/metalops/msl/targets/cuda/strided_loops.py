"""Unrolls strided loops, in which the threads of a group share the iterations: for (i = lane; i < n; i += lanes).

A thread that waits for one element at a time leaves most of a GPU's memory bandwidth unused. NVRTC cannot overlap
several iterations by itself, since i might wrap around: it would have to check for the end of the loop after each. Here
the loop is unrolled by four with a remainder loop. Each thread processes its elements in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ...dialect.rewrite import Rewritten
from ...source.tree import LOOPS, walk

_LONGEST = (
    400  # characters of a body: larger ones have enough parallelism, and need their registers
)
_LEAVING = {"break_statement", "continue_statement", "return_statement", "goto_statement"}
_LINE_DIRECTIVE = re.compile(r"(?m)^#.*$")


def unroll_strided_loops(rewritten: Rewritten, others: Collection[int]) -> None:
    """Unrolls the strided loops of a program. others: offsets of loops whose unrolling the program itself decides."""
    for function in rewritten.program.functions:
        if function.body is None or rewritten.is_removed(function.node.start_byte):
            continue
        for node in walk(function.body):
            if (
                node.type == "for_statement"
                and node.start_byte not in others
                and _is_strided(rewritten, node)
            ):
                _unroll(rewritten, node)


def _is_strided(rewritten: Rewritten, loop) -> bool:
    source = rewritten.program.source
    initializer, condition, update, body = (
        loop.child_by_field_name(name) for name in ("initializer", "condition", "update", "body")
    )
    if condition is None or update is None or body is None:
        return False
    if initializer is None or initializer.type != "declaration":
        return False
    if update.type != "assignment_expression" or condition.type != "binary_expression":
        return False
    variable, limit = (condition.child_by_field_name(name) for name in ("left", "right"))
    counted, step = (update.child_by_field_name(name) for name in ("left", "right"))
    return (
        source.node_text(update.child_by_field_name("operator")) == "+="
        and source.node_text(condition.child_by_field_name("operator")) == "<"
        and variable.type == counted.type == "identifier"
        and source.node_text(variable) == source.node_text(counted)
        and step.type in ("identifier", "binary_expression")
        and limit.type in ("identifier", "field_expression")
        and body.end_byte - body.start_byte <= _LONGEST
        and not any(
            node.type in LOOPS
            or node.type in _LEAVING
            or node.type == "lambda_expression"
            or (node.type == "call_expression" and rewritten.calls.call_synchronises(node))
            for node in walk(body)
        )
    )


def _unroll(rewritten: Rewritten, loop) -> None:
    """Writes { uint i = lane; for (; four iterations are left;) { four iterations } for (; i < n; i += lanes) ... }"""
    edits = rewritten.edits
    initializer, condition, update, body = (
        loop.child_by_field_name(name) for name in ("initializer", "condition", "update", "body")
    )

    def text_of(node) -> str:
        return _LINE_DIRECTIVE.sub("", edits.text_of(node.start_byte, node.end_byte))

    variable, limit = (text_of(condition.child_by_field_name(name)) for name in ("left", "right"))
    step = text_of(update.child_by_field_name("right"))
    turn = f"{{ {text_of(body)} }} {text_of(update)}; "
    left = f"(long long)({limit}) - (long long)({variable}) > 3 * (long long)({step})"
    begin = f"{{ {text_of(initializer)} for (; {left};) {{ {turn * 4} }} "
    edits.wrap(loop.start_byte, loop.end_byte, begin, " }")
    edits.replace(initializer.start_byte, initializer.end_byte, ";")
