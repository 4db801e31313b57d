"""Nodes of the syntax tree: walking it, and the parts of statements and lambdas."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .parse import Source

# Expressions of which trees of any depth are made.
NESTED = {
    "argument_list",
    "assignment_expression",
    "binary_expression",
    "call_expression",
    "cast_expression",
    "comma_expression",
    "conditional_expression",
    "field_expression",
    "parenthesized_expression",
    "pointer_expression",
    "subscript_expression",
    "unary_expression",
}
_DEEP = 500
LOOPS = {"for_statement", "while_statement", "do_statement", "for_range_loop"}


def walk(node) -> Iterator:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def may_be_deep(node) -> bool:
    """Returns true if so many nodes are below one that the tree may be too deep for recursion."""
    return node.descendant_count > _DEEP


def inner_first(node, kinds: Collection[str]) -> Iterator:
    """Yields a node, and the children of it and of all nodes of these kinds that are reached so, each after its own
    children. Whoever keeps a result for each node can compute them in this order, however deep the tree is."""
    waiting, found = [node], []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if node.type in kinds:
            waiting.extend(node.named_children)
    return reversed(found)


def statements_of(node) -> list:
    """Returns the statements of a block, or the statement itself."""
    if node.type == "compound_statement":
        return [c for c in node.named_children if c.type != "comment"]
    return [node]


def alternative_of(node):
    """Returns the statement after `else`, or None."""
    clause = node.child_by_field_name("alternative")
    if clause is None:
        return None
    return next(c for c in clause.named_children if c.type != "comment")


def is_constexpr_if(node) -> bool:
    return any(c.type == "constexpr" for c in node.children)


def without_parentheses(node):
    while node.type == "parenthesized_expression" and node.named_child_count == 1:
        node = node.named_children[0]
    return node


def is_mutable(node) -> bool:
    """Returns true if a lambda_expression may change its copies of captured variables."""
    declarator = node.child_by_field_name("declarator")
    return declarator is not None and any(
        c.type == "type_qualifier" and c.text == b"mutable" for c in declarator.children
    )


def captures_by_value(source: Source, node, name: str) -> bool:
    """Returns true if a lambda_expression captures `name` by value."""
    default, previous = False, None
    for child in node.child_by_field_name("captures").children:
        if child.type == "lambda_default_capture":
            default = source.node_text(child) == "="
        elif child.type == "identifier" and source.node_text(child) == name:
            return previous != "&"
        previous = child.type
    return default


def case_statements(case) -> list:
    """Returns the statements after a case label."""
    value = case.child_by_field_name("value")
    return [
        c
        for c in case.named_children
        if c.type != "comment" and (value is None or c.start_byte != value.start_byte)
    ]
