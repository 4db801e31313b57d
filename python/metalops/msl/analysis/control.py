"""Control dependences in a function that a threadgroup runs together: the conditions around what stands directly in its cut
statements."""

from __future__ import annotations

from ..source.tree import LOOPS, alternative_of, case_statements, is_constexpr_if, statements_of
from .cuts import Cuts


class Control:
    """The conditions around declarations, assignments, exits and returns that stand directly in cut statements.

    returns: those of every return. returns_of: of the returns of a closure, by its node id.
    """

    def __init__(self, body, cuts: Cuts):
        self._cuts = cuts
        self._simple_definitions: dict[int, tuple] = {}  # by the node id of an assignment
        self._level: dict[int, tuple] = {}  # by the node id of a declaration
        self._exits: dict[int, list] = {}  # of the exits of a loop, by its node id
        self.returns: list[tuple] = []
        self.returns_of: dict[int, list[tuple]] = {}
        self._structure(statements_of(body), (), None, self.returns)
        for closure in cuts.closures:
            returns = self.returns_of[closure.id] = []
            self._structure(statements_of(closure.child_by_field_name("body")), (), None, returns)

    def of_declaration(self, node) -> tuple | None:
        """Returns the conditions around a declaration; None inside a statement that runs as a whole."""
        return self._level.get(node.id)

    def of_definition(self, node) -> tuple | None:
        """Returns the conditions around an assignment to a variable as a whole; None if it is no such one, or stands
        inside a statement that runs as a whole."""
        return self._simple_definitions.get(node.id)

    def of_exits(self, loop) -> list[tuple]:
        """Returns the conditions around each exit of a loop or switch."""
        return self._exits.get(loop.id, [])

    def _structure(self, statements, conditions: tuple, loop, returns: list) -> None:
        """Records the conditions around declarations, assignments, exits and returns that stand directly in cut
        statements."""
        for node in statements:
            kind = node.type
            if kind == "declaration":
                self._level[node.id] = conditions
            elif kind == "expression_statement":
                for child in node.named_children:
                    self._definition(child, conditions)
            if kind in ("break_statement", "continue_statement", "return_statement"):
                for around in loop or ():
                    self._exits.setdefault(around.id, []).append(conditions)
                if kind == "return_statement":
                    returns.append(conditions)
            if kind == "declaration" or not self._cuts.is_cut(node):
                continue
            if kind == "compound_statement":
                self._structure(statements_of(node), conditions, loop, returns)
            elif kind == "if_statement":
                inside = conditions
                if not is_constexpr_if(node):
                    inside = (*conditions, node.child_by_field_name("condition"))
                self._structure(
                    statements_of(node.child_by_field_name("consequence")), inside, loop, returns
                )
                if alternative_of(node) is not None:
                    self._structure(statements_of(alternative_of(node)), inside, loop, returns)
            elif kind in LOOPS:
                condition = node.child_by_field_name("condition")
                inside = (*conditions, *([condition] if condition is not None else ()), node)
                initializer = node.child_by_field_name("initializer")
                if initializer is not None and initializer.type == "declaration":
                    self._level[initializer.id] = conditions
                elif initializer is not None:
                    self._definition(initializer, conditions)
                update = node.child_by_field_name("update")
                if update is not None:
                    self._definition(update, inside)
                self._structure(
                    statements_of(node.child_by_field_name("body")),
                    inside,
                    (*(loop or ()), node),
                    returns,
                )
            elif kind == "switch_statement":
                inside = (*conditions, node.child_by_field_name("condition"), node)
                for case in node.child_by_field_name("body").named_children:
                    if case.type == "case_statement":
                        self._structure(
                            case_statements(case), inside, (*(loop or ()), node), returns
                        )

    def _definition(self, node, conditions) -> None:
        if node.type == "comma_expression":
            for child in node.named_children:
                self._definition(child, conditions)
        elif node.type in ("assignment_expression", "update_expression"):
            target = node.child_by_field_name("left") or node.child_by_field_name("argument")
            while target.type == "field_expression" and target.children[1].type != "->":
                target = target.child_by_field_name("argument")
            if target.type == "identifier":
                self._simple_definitions[node.id] = conditions
