"""Finds accesses to a thread's private memory at computed addresses, as opposed to plain variables.

Accesses that are known to be harmless are listed; everything else counts as computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..source.parse import Source
from .program import declarator_kinds
from .scopes import Declaration, FunctionScopes

_ARRAYS = """
(declaration declarator: (array_declarator) @a)
(init_declarator declarator: (array_declarator) @a)
(field_declaration declarator: (array_declarator) @a)
"""
_ACCESSES = """
(subscript_expression) @x
(pointer_expression operator: "*") @x
(field_expression operator: "->") @x
"""
# Address spaces of shared memory. Threadgroup memory is shared, too, while the threads of one group run.
OF_THE_GRID = frozenset({"device", "constant"})
OF_THE_GROUP = OF_THE_GRID | {"threadgroup"}
_SPACES = OF_THE_GROUP | {"thread"}
_AROUND_A_BASE = {
    "parenthesized_expression",
    "binary_expression",
    "subscript_expression",
    "field_expression",
}
_VECTOR = re.compile(
    r"(?:metal::)?(?:packed_)?(?:bool|bfloat|half|float|u?(?:char|short|int|long))[234]"
)
_CHOICES = """
(for_range_loop) @range
(function_definition declarator: (reference_declarator)) @function
(conditional_expression) @choice
"""


def has_arrays(source: Source, node) -> bool:
    """Returns true if arrays are declared somewhere in a node."""
    return bool(source.captures(_ARRAYS, node))


def has_computed_accesses(
    source: Source,
    scopes: FunctionScopes,
    takes_reference: Callable[[object, int], bool],
    spaces: frozenset[str] = OF_THE_GRID,
    node=None,
    is_harmless: Callable[[Declaration | None], bool] = lambda _: False,
) -> bool:
    """Returns true if there are arrays, loops over the elements of an object, accesses through anything but a pointer
    that is declared to point to shared memory, or references to one of several objects.

    takes_reference: returns true if a call_expression may write its argument of some number
    (CallGraph.takes_reference). spaces: the address spaces of shared memory. node: the node to examine, by default the
    whole function. is_harmless: returns true if a variable that is in none of these spaces (None for one that the
    function does not declare) is, or points to, memory that no other thread has.
    """
    node = node or scopes.node
    if has_arrays(source, node):
        return True
    captures = source.captures(_CHOICES, node)
    return (
        "range" in captures
        or any(_returns_one_of_several(source, f) for f in captures.get("function", ()))
        or any(_is_an_object(source, c, takes_reference) for c in captures.get("choice", ()))
        or any(
            _is_computed(source, scopes, spaces, is_harmless, access)
            for access in source.find(_ACCESSES, node)
        )
    )


def _returns_one_of_several(source: Source, function) -> bool:
    """Returns true if a function returns a reference to one of several objects, which may be private."""
    declarator = function.child_by_field_name("declarator")
    spaces = {w.text for w in source.words_in(function.start_byte, declarator.start_byte)}
    before = source.words_in(source.previous_code(function.start_byte) + 1, function.start_byte)
    if {*spaces, *(w.text for w in before)} in ({"device"}, {"constant"}):
        return False
    found = set()
    for statement in source.find("(return_statement) @r", function):
        value = statement.named_children[0] if statement.named_children else None
        while value is not None and value.type in ("parenthesized_expression", "field_expression"):
            value = value.child_by_field_name("argument") or value.named_children[0]
        is_this = value is not None and source.masked_text(value).replace(" ", "") == "*this"
        if not is_this and (value is None or value.type not in ("identifier", "this")):
            return True
        found.add(source.masked_text(statement))
    return len(found) > 1


def _is_an_object(source: Source, choice, takes_reference) -> bool:
    """Returns true if a conditional expression is an lvalue, one of two objects, and not a value."""
    node, parent = choice, choice.parent
    while parent.type == "parenthesized_expression" or (
        parent.type == "field_expression" and parent.parent.type != "call_expression"
    ):
        node, parent = parent, parent.parent
    kind = parent.type
    if kind == "assignment_expression":
        return parent.child_by_field_name("left") == node
    if kind == "init_declarator":
        return "reference" in declarator_kinds(parent.child_by_field_name("declarator"))
    if kind == "argument_list" and parent.parent.type == "call_expression":
        arguments = [a for a in parent.named_children if a.type != "comment"]
        return takes_reference(parent.parent, arguments.index(node))
    if kind == "pointer_expression":
        return parent.children[0].type == "&"
    return kind in ("update_expression", "field_expression")


def _is_computed(source: Source, scopes: FunctionScopes, spaces, is_harmless, access) -> bool:
    base = access.child_by_field_name("argument")
    while base.type in _AROUND_A_BASE:
        base = (
            base.child_by_field_name("left")
            or base.child_by_field_name("argument")
            or base.named_children[0]
        )
    if base.type == "this" or _is_cast_to_shared_memory(source, spaces, base):
        return False
    if base.type != "identifier":
        return True
    declaration = scopes.declaration_of(base)
    if declaration is not None and (
        _is_shared(declaration, spaces) or _is_component(source, declaration, access)
    ):
        return False
    return not is_harmless(declaration)


def _is_component(source: Source, declaration: Declaration, access) -> bool:
    """Returns true for `v[0]` of a vector, which is equivalent to `v.x`."""
    indices = access.child_by_field_name("indices")
    return (
        indices is not None
        and [n.type for n in indices.named_children] == ["number_literal"]
        and access.child_by_field_name("argument").type == "identifier"
        and not declaration.kinds
        and declaration.type_node is not None
        and _VECTOR.fullmatch(source.masked_text(declaration.type_node)) is not None
    )


def _is_cast_to_shared_memory(source: Source, spaces, node) -> bool:
    """Returns true if an expression names the address space that it points to."""
    if node.type not in ("cast_expression", "call_expression"):
        return False
    type_node = node.child_by_field_name("type") or node.child_by_field_name("function")
    words = {w.text for w in source.words_in(node.start_byte, type_node.end_byte)}
    return len(words) == 1 and words <= spaces


def _is_shared(declaration: Declaration, spaces) -> bool:
    """Returns true if a variable is in shared memory, or is a pointer that is declared to point to it."""
    named = declaration.address_spaces
    if not named & spaces or named & (_SPACES - spaces):
        return False
    return declaration.kinds[:1] in (["pointer"], ["array"], ["reference"])
