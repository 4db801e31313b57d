"""Rematerialisation: which varying values are computed again in every work-item loop that uses them, because that is cheaper
than a copy for each thread."""

from __future__ import annotations

import re

from ..source.parse import Source
from ..source.tree import is_mutable, walk
from .variables import NAMES, Kind, Variable, Variables

# Calls that cost no more than an addition.
CONVERSIONS = re.compile(
    r"(?:metal::)?(?:static_cast\s*<[\w:\s]+>|min|max|"
    r"(?:u?(?:char|short|int|long)|float|half|bool|size_t|u?int(?:8|16|32|64)_t)[234]?)$"
)


class Rematerialisation:
    """The choice for the variables of one function. members: names of members of its class."""

    _CHEAP = {
        "binary_expression", "unary_expression", "parenthesized_expression", "number_literal",
        "identifier", "field_expression", "field_identifier", "cast_expression",
        "type_descriptor", "primitive_type", "type_identifier", "sized_type_specifier",
        "qualified_identifier", "namespace_identifier", "call_expression", "argument_list",
        "template_function", "template_argument_list", "true", "false", "init_declarator",
        "conditional_expression",
    }  # fmt: skip

    def __init__(self, source: Source, variables: Variables, members: frozenset[str]):
        self._source = source
        self._variables = variables
        self._members = members

    def is_cheaper(self, variable: Variable) -> bool:
        """Returns true if rematerialising a value is cheaper than privatising it."""
        if variable.is_parameter or variable.is_array or variable.is_reference:
            return False
        if variable.conditions is None or variable.value is None or len(variable.definitions) != 1:
            return False
        declaration = variable.declaration
        if len(self._variables.declared_by(declaration)) != 1 or variable.declarator.type == (
            "function_declarator"
        ):
            return False
        if variable in self._variables.held or self._is_hidden(variable):
            return False
        if variable.declared.lambda_expression is not None:
            return self._can_be_made_again(variable)
        size = 0
        for n in walk(variable.value):
            size += n.is_named
            if size > 40:
                return False
            if n.is_named and n.type not in self._CHEAP:
                return False
            if n.type == "call_expression":
                callee = self._source.masked_text(n.child_by_field_name("function"))
                if not CONVERSIONS.match(callee):
                    return False
            if n.type in NAMES:
                used = self._variables.of.get(n.start_byte)
                if used is None:
                    if self._source.node_text(n) in self._members:
                        return False
                    continue
                if used.kind is Kind.THREAD:
                    return False
                if used.kind is Kind.GROUP and self._variables.changes_within(
                    used, declaration.end_byte, variable.declared.scope.end_byte
                ):
                    return False
        return True

    def _is_hidden(self, variable: Variable) -> bool:
        """Returns true if some name in its declaration means something else in a cut part of its scope."""
        start, end = variable.declaration.end_byte, variable.declared.scope.end_byte
        names = {
            variable.name,
            *(v.name for v in self._variables.captured_by(variable.declaration)),
        }
        return any(
            v.name in names and v.conditions is not None and start <= v.identifier.start_byte < end
            for v in self._variables.all
        )

    def _can_be_made_again(self, variable: Variable) -> bool:
        """Returns true if a lambda is the same wherever it is rematerialised."""
        value = variable.value
        captures = value.child_by_field_name("captures")
        if any(n.type == "lambda_capture_initializer" for n in captures.children):
            return False
        if is_mutable(value) or any(n.type == "*" for n in captures.children):
            return False
        return not any(map(self._variables.may_change, self._variables.copied_by(value)))
