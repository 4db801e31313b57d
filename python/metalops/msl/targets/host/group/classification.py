"""The ways to run a statement: once for the group, as a whole by each thread, or cut."""

from __future__ import annotations

import re

from ....analysis.variables import Kind, Variable
from ....source.tree import is_constexpr_if, walk
from .context import FunctionContext
from .rewriter import Rewriter

_INTEGERS = re.compile(
    r"(?:const\s+)?(?:auto|unsigned|(?:unsigned\s+)?(?:int|short|long)|u(?:int|short|long)|size_t"
    r"|u?int(?:16|32|64)_t)$"
)
_STATEMENTS_OF_TYPES = {
    "alias_declaration",
    "type_definition",
    "using_declaration",
    "static_assert_declaration",
    "struct_specifier",
    "class_specifier",
    "enum_specifier",
    "namespace_alias_definition",
}


class Classification:
    """Classifies statements by uniformity and by where threads synchronise."""

    def __init__(self, context: FunctionContext, rewriter: Rewriter):
        self._body = context.body
        self._source = context.source
        self._rewriter = rewriter

    def is_uniform(self, node) -> bool:
        if node.type in _STATEMENTS_OF_TYPES:
            return True
        if node.type == "declaration":
            variables = self._body.variables.declared_by(node)
            return not variables or all(v.kind is not Kind.THREAD for v in variables)
        if node.type == "expression_statement" and node.named_children:
            return self.is_uniform_definition(node.named_children[0])
        return False

    def is_uniform_definition(self, node) -> bool:
        if node.type == "comma_expression":
            return all(map(self.is_uniform_definition, node.named_children))
        if node.type not in ("assignment_expression", "update_expression"):
            return False
        target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        while target.type == "field_expression":
            target = target.child_by_field_name("argument")
        variable = self._body.variables.variable_named(target)
        if variable is None or variable.is_of_group:
            return False
        return variable.kind in (Kind.GROUP, Kind.SHIFTED)

    def runs_whole(self, node) -> bool:
        """Returns true if each thread runs the statement as a whole."""
        if node.type in ("break_statement", "continue_statement", "return_statement"):
            return False
        if not self._body.cuts.is_cut(node):
            return True
        if self._body.cuts.must_be_cut(node):
            return False
        if node.type == "if_statement":
            if is_constexpr_if(node) or not self._body.parts(node.child_by_field_name("condition")):
                return False
            return not (self._body.cuts.is_masked(node) and self._is_cheap_condition(node))
        if node.type == "for_statement":
            return not (self.is_uniform_loop(node) or self.is_strided(node))
        return False

    def reads_memory(self, node) -> bool:
        return any(
            n.type in ("subscript_expression", "pointer_expression", "call_expression")
            or (n.type == "field_expression" and n.children[1].type == "->")
            for n in walk(node)
        ) or any(
            v.is_reference or "threadgroup" in v.declared.address_spaces
            for v in self._body.variables.used_in(node)
        )

    def changes(self, node) -> bool:
        return node.type == "expression_statement"

    def hides(self, node, run) -> bool:
        hidden = {v.name for v in self._body.variables.declared_by(node)}
        return any(v.name in hidden for item, _ in run for v in self._body.variables.used_in(item))

    def is_uniform_loop(self, node) -> bool:
        """Returns true if all threads run a loop equally often."""
        if node.type == "for_range_loop":
            return False
        condition = node.child_by_field_name("condition")
        if condition is not None and (
            self._body.cuts.meets(condition) or self._body.parts(condition)
        ):
            return False
        initializer = node.child_by_field_name("initializer")
        if initializer is not None and initializer.type == "declaration":
            if any(v.kind is Kind.THREAD for v in self._body.variables.declared_by(initializer)):
                return False
        elif initializer is not None and (
            self._body.cuts.meets(initializer) or not self.is_uniform_definition(initializer)
        ):
            return False
        update = node.child_by_field_name("update")
        if update is not None and not self.is_uniform_definition(update):
            return False
        return not self._body.parts(node)

    def is_strided(self, node) -> bool:
        """Returns true for `for (T i = start; i < bound; i += step)` with a uniform bound and step."""
        initializer = node.child_by_field_name("initializer")
        condition, update = (
            node.child_by_field_name("condition"),
            node.child_by_field_name("update"),
        )
        if initializer is None or initializer.type != "declaration":
            return False
        if condition is None or update is None:
            return False
        variables = self._body.variables.declared_by(initializer)
        if len(variables) != 1 or variables[0].value is None or len(variables[0].definitions) > 3:
            return False
        variable = variables[0]
        type_text = self._source.masked_text(initializer.child_by_field_name("type"))
        if not _INTEGERS.match(type_text.strip()) or variable.declarator.type != "identifier":
            return False
        left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
        operator = self._source.node_text(condition.child_by_field_name("operator"))
        if (
            self._body.variables.of.get(left.start_byte) is not variable
            or left.type != "identifier"
        ):
            return False
        if operator != "<" or not self._body.is_same(right):
            return False
        step = self.step(update, variable)
        if step is None:
            return False
        body = node.child_by_field_name("body")
        return not any(
            body.start_byte <= value.start_byte < body.end_byte
            for value, _ in variable.definitions
            if value is not None
        ) and all(value is not None for value, _ in variable.definitions)

    def step(self, update, variable: Variable) -> str | None:
        target = update.child_by_field_name("left") or update.child_by_field_name("argument")
        if target is None or self._body.variables.of.get(target.start_byte) is not variable:
            return None
        text = self._source.node_text(update)
        if update.type == "update_expression":
            return "1" if "++" in text else None
        if update.type != "assignment_expression":
            return None
        operator = self._source.node_text(update.child_by_field_name("operator"))
        right = update.child_by_field_name("right")
        if operator != "+=" or not self._body.is_same(right):
            return None
        return self._rewriter.unrenamed(right.start_byte, right.end_byte)

    def _is_cheap_condition(self, node) -> bool:
        return all(
            v.kind is not Kind.THREAD
            for v in self._body.variables.used_in(node.child_by_field_name("condition"))
        )
