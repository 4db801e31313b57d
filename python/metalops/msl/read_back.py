"""Whether a thread may read from shared memory what it has written there itself, by another expression.

A thread sees its own writes in order. Compilers that are promised independent iterations move accesses of one iteration
past each other too, where they gather or scatter those of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .parse import Source
from .regions import LOOPS
from .scopes import Declaration, FunctionScopes

_SPACES = {"device", "threadgroup"}
_PASSED = "passed"


def reads_back(
    source: Source,
    scopes: FunctionScopes,
    takes_reference: Callable[[object, int], bool],
    nodes: Iterable,
) -> bool:
    """Whether nodes of a function write to memory through a pointer, and read it through the same one, or one that is made
    of it, in another way.

    takes_reference: whether a call_expression may write its argument of some number (CallGraph.takes_reference).
    """
    pointers = _pointers(scopes)
    accesses: dict[int, list[_Access]] = {}  # by the first pointer
    for declaration in pointers:
        found = accesses.setdefault(_first(declaration, pointers), [])
        for use in declaration.uses:
            if any(n.start_byte <= use.start_byte < n.end_byte for n in nodes):
                found += _accesses(source, scopes, takes_reference, declaration, use)
    return any(
        write.is_write
        and not read.is_write
        and (write.way != read.way or _is_given_both(read, write))
        and _may_follow(read, write)
        for found in accesses.values()
        for write in found
        for read in found
    )


@dataclass
class _Access:
    """way: by what expression; `node` is the whole of it, and `done` the offset behind which it has happened."""

    is_write: bool
    way: tuple
    node: object
    done: int


def _is_given_both(read: _Access, write: _Access) -> bool:
    """Whether one call is given the memory twice."""
    return (
        read.way == (_PASSED,) and read.node != write.node and read.node.parent == write.node.parent
    )


def _may_follow(read: _Access, write: _Access) -> bool:
    if read.node.start_byte >= write.done:
        return True
    node = read.node
    while node is not None and node.type not in ("function_definition", "lambda_expression"):
        if node.type in LOOPS and node.start_byte <= write.node.start_byte < node.end_byte:
            return True
        node = node.parent
    return False


def _pointers(scopes: FunctionScopes) -> list[Declaration]:
    """Variables that stand for shared memory that can be written."""
    return [
        d
        for d in scopes.declarations
        if d.kind in ("parameter", "variable") and d.address_spaces & _SPACES
    ]


def _first(declaration: Declaration, pointers: list[Declaration]) -> int:
    """The pointer that a pointer is made of in the end, by where it is declared."""
    seen = set()
    while declaration.initialiser is not None and id(declaration) not in seen:
        seen.add(id(declaration))
        value = declaration.initialiser
        made_of = [
            d
            for d in pointers
            if d is not declaration
            and any(value.start_byte <= u.start_byte < value.end_byte for u in d.uses)
        ]
        if not made_of:
            break
        declaration = made_of[0]
    return declaration.identifier.start_byte


def _accesses(
    source: Source, scopes: FunctionScopes, takes_reference, declaration: Declaration, use
) -> list[_Access]:
    """What a mention of a pointer does to memory."""
    node, way, is_address = use, (), not declaration.is_reference
    while True:
        around = node.parent
        if around.type == "subscript_expression":
            if around.child_by_field_name("argument") != node:
                break  # it is an index
            way += _index(source, scopes, around.child_by_field_name("indices"))
            is_address = False
        elif around.type == "pointer_expression" and around.children[0].type == "*":
            way += ("*",)
            is_address = False
        elif around.type == "field_expression":
            is_address = False
        elif is_address and around.type == "binary_expression":
            if around.child_by_field_name("operator").type not in ("+", "-"):
                return []  # addresses are compared
            sides = [around.child_by_field_name(side) for side in ("left", "right")]
            way += _index(source, scopes, sides[sides[0] == node])
        elif around.type != "parenthesized_expression":
            break
        node = around
    if is_address:
        # Of functions that are given it, not all is known.
        if around.type == "argument_list" and around.parent.type == "call_expression":
            read = _Access(False, (_PASSED,), node, node.end_byte)
            return [read] if declaration.is_const else [read, replace(read, is_write=True)]
        return []

    def made(reads: bool, writes: bool) -> list[_Access]:
        found = [_Access(False, way, node, node.end_byte)] if reads else []
        return found + ([_Access(True, way, node, around.end_byte)] if writes else [])

    way = (declaration.identifier.start_byte, *way)
    if around.type == "argument_list" and around.parent.type == "call_expression":
        arguments = [a for a in around.named_children if a.type != "comment"]
        return made(True, takes_reference(around.parent, arguments.index(node)))
    if around.type == "assignment_expression" and around.child_by_field_name("left") == node:
        operator = source.node_text(around.child_by_field_name("operator"))
        return made(operator != "=", True)
    changes = (
        around.type == "update_expression"
        or (around.type == "pointer_expression" and around.children[0].type == "&")
        or around.type == "call_expression"  # a member function of what is there
    )
    return made(True, changes)


def _index(source: Source, scopes: FunctionScopes, indices) -> tuple:
    """An index: equal ones are the same element. Of variables that change in the function none are equal, but for those
    that loops count."""
    for name in source.find("(identifier) @n", indices):
        declaration = scopes.declaration_of(name)
        if declaration is None:
            continue
        for definition in declaration.definitions:
            loop = definition
            while loop is not None and loop.type != "for_statement":
                loop = loop.parent
            update = loop.child_by_field_name("update") if loop is not None else None
            if update is None or not update.start_byte <= definition.start_byte < update.end_byte:
                return ("changing", indices.start_byte)
    return ("".join(source.masked_text(indices).split()),)
