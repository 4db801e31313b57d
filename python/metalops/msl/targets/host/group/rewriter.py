"""The text of a function in its group form."""

from __future__ import annotations

from ....dialect.edits import Mapped
from ....source.tree import walk
from .context import FunctionContext


class Rewriter:
    """Copies parts of the source with the program's edits, and with the names that the group form gives to the object
    and its members. replaced: (start, end, text) each, in place of what the source has there."""

    def __init__(self, context: FunctionContext):
        self._source = context.source
        self._edits = context.edits
        self._variables = context.body.variables.of
        self._members = context.members
        self._has_object = context.has_object
        function = context.function
        self._renamed = [
            (n.start_byte, n.end_byte, f"msl_self.{self._source.node_text(n)}")
            for n in walk(function.body)
            if self._names_member(n)
        ] + [
            (n.start_byte, n.end_byte, "(&msl_self)")
            for n in walk(function.body)
            if self._members and n.type == "this"
        ]
        # In the function of one thread it would have another value.
        self._renamed += [
            (n.start_byte, n.end_byte, f'"{function.name}"')
            for n in walk(function.body)
            if n.type == "identifier" and self._source.node_text(n) in ("__func__", "__FUNCTION__")
        ]

    def unrenamed(self, start: int, end: int) -> str:
        """Returns a range with the program's edits only."""
        return self._edits.apply(start, end, without="fibers")[0]

    def copy(self, start: int, end: int, replaced=()) -> Mapped:
        members = [
            (a, b, text)
            for a, b, text in self._renamed
            if start <= a < end and not any(x <= a < y for x, y, _ in replaced)
        ]
        return Mapped(*self._edits.apply(start, end, [*replaced, *members], without="fibers"))

    def expression(self, node, replaced=()) -> Mapped:
        return self.copy(node.start_byte, node.end_byte, replaced)

    def statement(self, node, replaced=()) -> Mapped:
        """Returns the text of a node with the address space that may precede it."""
        return self.copy(self._source.previous_code(node.start_byte) + 1, node.end_byte, replaced)

    def _names_member(self, node) -> bool:
        """Returns true if an identifier stands for a member of the object."""
        if node.type != "identifier" or node.start_byte in self._variables:
            return False
        if self._source.node_text(node) == "operator" and self._has_object:
            return True  # operator()(...)
        if self._source.node_text(node) not in self._members:
            return False
        parent = node.parent
        if parent.type == "qualified_identifier":
            return False
        return parent.type != "template_function" or parent.parent.type != "qualified_identifier"
