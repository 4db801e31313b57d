"""Finds the `*` that multiply simdgroup matrices, which synchronises the simdgroup's threads: those whose operands are
plainly such matrices."""

from __future__ import annotations

import functools

from .calls import CallGraph
from .program import Function, name_node
from .variables import USES_MATRICES


class MatrixProducts:
    def __init__(self, calls: CallGraph):
        self.calls = calls
        self.source = calls.source
        # A program that names none of the types has no matrices.
        self._are_there = any(map(USES_MATRICES.search, self.source.words_at))

    def is_one(self, node) -> bool:
        """Returns true if a binary_expression multiplies two matrices."""
        if not self._are_there or node.child_by_field_name("operator").type != "*":
            return False
        return all(self._is_matrix(node.child_by_field_name(s)) for s in ("left", "right"))

    def is_hidden(self, call) -> bool:
        """Returns true if a call_expression passes matrices to a function template that multiplies values of a template
        parameter's type."""
        if not self._are_there:
            return False
        arguments = call.child_by_field_name("arguments").named_children
        return any(map(self._is_matrix, arguments)) and any(
            map(self._multiplies_of_template, self.calls.callees(call))
        )

    def _multiplies_of_template(self, function: Function) -> bool:
        scopes = self.calls.scopes(function.node)

        def is_of_template(node) -> bool:
            declaration = scopes.declaration_of(node) if node.type == "identifier" else None
            type_node = declaration and declaration.type_node
            if type_node is None:
                return False
            meant = scopes.declaration_of(name_node(type_node))
            return meant is not None and meant.kind == "type"

        return any(
            all(is_of_template(product.child_by_field_name(s)) for s in ("left", "right"))
            for product in self.source.find('(binary_expression operator: "*") @p', function.node)
        )

    @functools.cached_property
    def _fields(self) -> set[str]:
        """Names of data members that are matrices, or arrays of them."""
        return {
            self.source.node_text(name)
            for declaration in self.source.find("(field_declaration) @f")
            if USES_MATRICES.search(
                self.source.masked_text(declaration.child_by_field_name("type"))
            )
            for name in self.source.find("(field_identifier) @n", declaration)
        }

    def _is_matrix(self, node, depth: int = 0) -> bool:
        if node is None or depth > 20:
            return False
        kind = node.type
        if kind == "parenthesized_expression":
            return self._is_matrix(node.named_children[0], depth + 1)
        if kind == "pointer_expression" or kind == "subscript_expression":
            return self._is_matrix(node.child_by_field_name("argument"), depth + 1)
        if kind == "field_expression":
            return self.source.node_text(name_node(node)) in self._fields
        if kind == "binary_expression":
            return self.is_one(node)
        if kind == "call_expression":
            return self._gives_matrix(node)
        if kind != "identifier":
            return False
        declaration = self.calls.scopes_around(node).declaration_of(node)
        if declaration is None:
            return self.source.node_text(node) in self._fields
        if declaration.type_node is None:
            return self._is_matrix(declaration.initialiser, depth + 1)
        if declaration.type_node.type == "placeholder_type_specifier":
            return self._is_matrix(declaration.initialiser, depth + 1)
        return USES_MATRICES.search(self.source.masked_text(declaration.type_node)) is not None

    def _gives_matrix(self, call) -> bool:
        callee = call.child_by_field_name("function")
        if callee.type != "field_expression" and USES_MATRICES.search(
            self.source.masked_text(callee)
        ):
            return True
        called = [f for f in self.calls.callees(call) if isinstance(f, Function)]
        types = [f.node.child_by_field_name("type") for f in called]
        return bool(types) and all(
            t is not None and USES_MATRICES.search(self.source.masked_text(t)) for t in types
        )
