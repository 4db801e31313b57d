"""Whether a function uses memory of its thread at addresses that it computes, and not as variables alone.

What is known to be harmless is listed; all else counts as computed.
"""

from __future__ import annotations

from collections.abc import Callable

from .parse import Source
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
_CHOICES = """
(for_range_loop) @range
(function_definition declarator: (reference_declarator)) @function
(conditional_expression) @choice
"""


def has_arrays(source: Source, node) -> bool:
    """Whether arrays are declared somewhere in a node."""
    return bool(source.captures(_ARRAYS, node))


def has_computed_accesses(
    source: Source, scopes: FunctionScopes, takes_reference: Callable[[object, int], bool]
) -> bool:
    """Whether there are arrays, loops over what is in an object, accesses through anything but a pointer that is declared
    to point to device or constant memory, and references to one of several objects.

    takes_reference: whether a call_expression may write its argument of some number (CallGraph.takes_reference).
    """
    node = scopes.node
    if has_arrays(source, node):
        return True
    captures = source.captures(_CHOICES, node)
    return (
        "range" in captures
        or any(_returns_one_of_several(source, f) for f in captures.get("function", ()))
        or any(_is_an_object(source, c, takes_reference) for c in captures.get("choice", ()))
        or any(_is_computed(source, scopes, x) for x in source.find(_ACCESSES, node))
    )


def _returns_one_of_several(source: Source, function) -> bool:
    """Whether a function returns a reference to one of several objects, which may be a thread's own."""
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
    """Whether a conditional expression stands for one of two objects, and not for a value."""
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


def _is_computed(source: Source, scopes: FunctionScopes, access) -> bool:
    base = access.child_by_field_name("argument")
    while base.type in ("parenthesized_expression", "binary_expression"):
        base = base.child_by_field_name("left") or base.named_children[0]
    if base.type == "this" or _is_cast_to_shared_memory(source, base):
        return False
    declaration = scopes.declaration_of(base) if base.type == "identifier" else None
    return declaration is None or not _points_to_shared_memory(declaration)


def _is_cast_to_shared_memory(source: Source, node) -> bool:
    """Whether an expression names the address space that it points to."""
    if node.type not in ("cast_expression", "call_expression"):
        return False
    type_node = node.child_by_field_name("type") or node.child_by_field_name("function")
    words = {w.text for w in source.words_in(node.start_byte, type_node.end_byte)}
    return words in ({"device"}, {"constant"})


def _points_to_shared_memory(declaration: Declaration) -> bool:
    spaces = declaration.address_spaces
    return (
        declaration.is_pointer
        and bool(spaces & {"device", "constant"})
        and not spaces & {"thread", "threadgroup"}
    )
