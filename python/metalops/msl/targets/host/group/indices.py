"""Indices that grow with the variable of a loop, by the same amount: adjacent threads then access contiguous elements,
unless the sum wraps in between, which group.h checks before the loop."""

from __future__ import annotations

from collections.abc import Iterator

from ....analysis.uniformity import Body
from ....analysis.variables import Kind, Variable
from ....source.tree import without_parentheses

_SAME_OPERATORS = {"+", "-", "*", "<<"}


def growing_indices(body: Body, node, variable: Variable) -> Iterator:
    """Yields the index expressions in `node` that are the variable, or its sum with a uniform value that can be
    computed before the loop: integers, which may wrap."""
    if node.type == "lambda_expression":
        return  # it may not capture the variable that replaces the index
    if node.type == "subscript_expression" and _is_of_memory(
        body, node.child_by_field_name("argument")
    ):
        indices = node.child_by_field_name("indices").named_children
        if len(indices) == 1 and _grows(body, indices[0], variable):
            yield indices[0]
            node = node.child_by_field_name("argument")
    for child in node.named_children:
        yield from growing_indices(body, child, variable)


def _is_of_memory(body: Body, node) -> bool:
    """Returns true if a name stands for a pointer or an array, not for an object that has operators."""
    node = without_parentheses(node)
    variable = body.variables.variable_named(node)
    if variable is None:
        return False
    return variable.declared.is_pointer or variable.declared.is_array


def _grows(body: Body, node, variable: Variable) -> bool:
    node = without_parentheses(node)
    if node.type == "identifier":
        return body.variables.of.get(node.start_byte) is variable
    if node.type != "binary_expression":
        return False
    operator = body.source.node_text(node.child_by_field_name("operator"))
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    before = variable.identifier.start_byte
    if _grows(body, left, variable):
        return operator in ("+", "-") and _is_free(body, right, before)
    return operator == "+" and _grows(body, right, variable) and _is_free(body, left, before)


def _is_free(body: Body, node, before: int) -> bool:
    """Returns true if an expression of variables that are declared before a byte is uniform, cheap, and without side
    effects."""
    node = without_parentheses(node)
    if node.type == "number_literal":
        return True
    if node.type == "identifier":
        variable = body.variables.of.get(node.start_byte)
        return (
            variable is not None
            and variable.identifier.start_byte < before
            and variable.kind is Kind.GROUP
            and not variable.is_of_group
        )
    if node.type == "field_expression":
        return node.children[1].type == "." and _is_free(
            body, node.child_by_field_name("argument"), before
        )
    if node.type == "binary_expression":
        operator = body.source.node_text(node.child_by_field_name("operator"))
        return operator in _SAME_OPERATORS and all(
            _is_free(body, node.child_by_field_name(side), before) for side in ("left", "right")
        )
    return False
