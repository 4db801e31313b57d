"""Rows: parts of a buffer that belong to one thread each, `buffer[thread * length + k]` with k less than the length."""

from __future__ import annotations

from ....analysis.program import integer_value
from ....source.tree import walk, without_parentheses

_INTEGERS = {"uint", "int", "ulong", "long", "size_t"}
_LONGEST_STEP = 1 << 16


class Rows:
    """values: the Values of the kernel. lengths: the expressions of the lengths that make rows disjoint, if so many rows as
    threads run together have no more elements than an index of 32 bits tells apart. They mention only parameters."""

    def __init__(self, values):
        self._values = values
        self.lengths: list = []

    def have_own(self, indices: list) -> bool:
        """Returns true if threads that are adjacent in x access elements of different rows by these indices."""
        rows = [self._row(index) for index in indices]
        if None in rows or len({(self._leaves(base), self._leaves(n)) for base, n in rows}) != 1:
            return False
        self.lengths.append(rows[0][1])
        return True

    def _row(self, index) -> tuple | None:
        """Returns the number and the length of the row that an index is in."""
        for product, offset in self._operands(index, "+"):
            for base, length in self._operands(product, "*"):
                length = self._resolved(length)
                if (
                    self._values.grows(base)
                    and self._is_of_parameters(length)
                    and self._is_below(offset, length)
                ):
                    return self._resolved(base), length
        return None

    def _operands(self, node, operator: str) -> list[tuple]:
        node = self._resolved(node)
        if node.type != "binary_expression":
            return []
        if self._values.text(node.child_by_field_name("operator")) != operator:
            return []
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        return [(left, right), (right, left)]

    def _resolved(self, node):
        """Returns the value of a variable that never changes in place of the variable."""
        node = without_parentheses(node)
        declaration = (
            self._values.scopes.declaration_of(node) if node.type == "identifier" else None
        )
        if (
            declaration is None
            or declaration.kind != "variable"
            or declaration.kinds
            or declaration.definitions
            or declaration.is_address_taken
            or declaration.initialiser is None
            or self._values.text(declaration.type_node) not in _INTEGERS
        ):
            return node
        return self._resolved(declaration.initialiser)

    def _is_of_parameters(self, node) -> bool:
        """Returns true if an expression is uniform and can be computed at the kernel's begin."""
        declarations = [self._values.scopes.declaration_of(n) for n in walk(node)]
        return self._values.is_uniform_sum_part(node) and not any(
            d is not None and d.kind == "variable" for d in declarations
        )

    def _is_below(self, node, length) -> bool:
        """Returns true if an index is at least 0 and less than a length."""
        number = integer_value(self._values.text(node))
        if number is not None:
            limit = integer_value(self._values.text(length))
            return limit is not None and 0 <= number < limit
        declaration = (
            self._values.scopes.declaration_of(node) if node.type == "identifier" else None
        )
        if declaration is None or declaration.node.parent.type != "for_statement":
            return False
        loop = declaration.node.parent
        condition, update = (loop.child_by_field_name(n) for n in ("condition", "update"))
        if not self._values.counts(loop) or condition is None:
            return False
        begin = integer_value(self._values.text(declaration.initialiser))
        return (
            begin is not None
            and begin >= 0
            and condition.type == "binary_expression"
            and self._values.text(condition.child_by_field_name("operator")) == "<"
            and self._is_same(condition.child_by_field_name("left"), node)
            and self._is_at_most(self._resolved(condition.child_by_field_name("right")), length)
            and self._counts_up(update)
        )

    def _counts_up(self, update) -> bool:
        operator = self._values.text(update.child_by_field_name("operator"))
        if update.type == "update_expression":
            return operator == "++"
        step = integer_value(self._values.text(update.child_by_field_name("right")))
        return operator == "+=" and step is not None and 0 < step < _LONGEST_STEP

    def _is_at_most(self, node, length) -> bool:
        numbers = [integer_value(self._values.text(n)) for n in (node, length)]
        return self._is_same(node, length) or (None not in numbers and numbers[0] <= numbers[1])

    def _is_same(self, one, other) -> bool:
        return self._leaves(one) == self._leaves(other)

    def _leaves(self, node) -> tuple:
        """Returns the words of an expression, and which declarations they mean."""
        found = []
        for leaf in walk(node):
            if not leaf.children:
                declaration = self._values.scopes.declaration_of(leaf)
                at = None if declaration is None else declaration.identifier.start_byte
                found.append((self._values.text(leaf), at))
        return tuple(found)
