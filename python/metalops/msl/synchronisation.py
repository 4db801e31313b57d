"""Tells every synchronising call where it stands in the source: each gets a Site as its last
argument."""

from __future__ import annotations

import re

from . import names
from .calls import SYNCHRONISING
from .kernels import name_of
from .parse import closing_bracket

_NAMES = re.compile(r"\b(?:" + "|".join(sorted(SYNCHRONISING)) + r")\b")


def add_sites(rewritten) -> None:
    """Numbers the calls in order of position; rewritten.sites lists them."""
    source, edits = rewritten.program.source, rewritten.edits
    for function in rewritten.program.functions:
        if function.name in SYNCHRONISING:
            _take_site(rewritten, function)
    for match in _NAMES.finditer(source.masked):
        position = _argument_list(source, match)
        close = closing_bracket(source.masked, position) if position is not None else None
        if close is None or not _is_called(source.leaf_at(match.start())):
            continue
        comma = ", " if source.masked[position + 1 : close - 1].strip() else ""
        edits.append(close - 1, f"{comma}{names.ABI}::Site{{{len(rewritten.sites)}}}")
        rewritten.sites.append(match.start())


def _take_site(rewritten, function) -> None:
    """The program's own functions of such a name take a Site too: every call passes one."""
    source = rewritten.program.source
    parameters = function.declarator.child_by_field_name("parameters")
    inside = source.masked_text(parameters)[1:-1].strip()
    if inside == "void":
        rewritten.edits.blank(parameters.start_byte + 1, parameters.end_byte - 1)
    comma = ", " if inside and inside != "void" else ""
    is_declared_elsewhere = "::" in source.masked_text(name_of(function.declarator))
    default = "" if is_declared_elsewhere or function.is_specialisation else " = {}"
    rewritten.edits.append(parameters.end_byte - 1, f"{comma}{names.ABI}::Site{default}")


def _argument_list(source, match) -> int | None:
    """Where the arguments of a call begin, behind template arguments if there are any."""
    position = source.next_code(match.end())
    if source.masked[position : position + 1] == "<":
        node = source.leaf_at(match.start())
        while node is not None and node.type != "call_expression":
            if node.type in ("compound_statement", "argument_list"):
                return None
            node = node.parent
        if node is None:
            return None
        position = node.child_by_field_name("arguments").start_byte
    return position if source.masked[position : position + 1] == "(" else None


def _is_called(node) -> bool:
    """Whether a name is called, and not declared (a function or a variable of that name)."""
    while node.parent is not None and node.parent.type in (
        "qualified_identifier",
        "template_function",
        "field_expression",
    ):
        node = node.parent
    return node.parent is None or node.parent.type not in (
        "function_declarator",
        "init_declarator",
        "declaration",
    )
