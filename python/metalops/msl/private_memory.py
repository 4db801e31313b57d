"""Whether a function uses memory of its thread at addresses that it computes, and not as variables alone.

What is known to be harmless is listed; all else counts as computed.
"""

from __future__ import annotations

from .parse import Source
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


def has_arrays(source: Source, node) -> bool:
    """Whether arrays are declared somewhere in a node."""
    return bool(source.captures(_ARRAYS, node))


def has_computed_accesses(source: Source, scopes: FunctionScopes) -> bool:
    """Whether there are arrays, loops over what is in an object, and accesses through anything but a pointer that is
    declared to point to device or constant memory.
    """
    node = scopes.node
    if has_arrays(source, node) or source.captures("(for_range_loop) @l", node):
        return True
    return any(_is_computed(source, scopes, x) for x in source.find(_ACCESSES, node))


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
