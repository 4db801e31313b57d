"""Which statements of a function must be split at synchronisation points.

A statement is *cut* (split into regions, as in pocl) when something inside of it synchronises, when threads may leave
it early, or when it is a loop whose iterations are better interchanged with the work-item loop. All others run as a
whole, thread by thread, in one work-item loop.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Callable

from ..source.parse import Source
from ..source.tree import LOOPS, alternative_of, is_constexpr_if, statements_of, walk

_MEETINGS = {"call_expression", "lambda_expression", "binary_expression"}
_LARGEST_KEPT_LOOP = 16


class NotCut(Exception):
    """Raised with the reason why a function cannot run as a group loop."""


def condition_of(node):
    """Returns the expression of a condition clause. Raises NotCut for one that declares a variable."""
    clause = node.child_by_field_name("condition")
    if clause is None or clause.type != "condition_clause":
        return clause
    value = clause.child_by_field_name("value")
    if value is None or value.type == "declaration" or clause.child_by_field_name("initializer"):
        raise NotCut("a condition that declares a variable")
    return value


class Cuts:
    """The statements of one function that are cut. meets: as of Body."""

    def __init__(self, source: Source, body, meets: Callable):
        self._source = source
        self._body = body
        self._meetings = [  # in order of position
            (n.start_byte, n.end_byte) for n in walk(body) if n.type in _MEETINGS and meets(n)
        ]
        self.closures = [n for n in walk(body) if n.type == "lambda_expression" and meets(n)]
        self._cut: dict[int, bool] = {}
        self.more: frozenset[int] = frozenset()  # other statements that are cut, by node id

    def meets(self, node) -> bool:
        first = bisect.bisect_left(self._meetings, node.start_byte, key=lambda m: m[0])
        within = itertools.takewhile(
            lambda m: m[0] < node.end_byte, itertools.islice(self._meetings, first, None)
        )
        return any(end <= node.end_byte for _, end in within)

    def leaves(self, node) -> bool:
        """Returns true if threads may leave the statement by return, break or continue."""

        at = bisect.bisect_left(self._exit_starts, node.start_byte)
        if at == len(self._exit_starts) or self._exit_starts[at] >= node.end_byte:
            return False
        waiting = [(node, False, False)]
        while waiting:
            n, in_loop, in_switch = waiting.pop()
            if n.type in ("return_statement", "goto_statement"):
                return True
            if n.type == "break_statement" and not (in_loop or in_switch):
                return True
            if n.type == "continue_statement" and not in_loop:
                return True
            if n.type != "lambda_expression":
                in_loop = in_loop or n.type in LOOPS
                in_switch = in_switch or n.type == "switch_statement"
                waiting += [(c, in_loop, in_switch) for c in n.named_children]
        return False

    @functools.cached_property
    def _exit_starts(self) -> list[int]:
        """The offsets of all return, break, continue and goto statements of the body, in order."""
        query = "[(return_statement) (break_statement) (continue_statement) (goto_statement)] @n"
        return [n.start_byte for n in self._source.find(query, self._body)]

    def leaves_at_all(self, node) -> bool:
        """Returns true if threads may leave the loop with this body, or the function."""
        return any(n.type in ("break_statement", "return_statement") for n in walk(node))

    def is_cut(self, node) -> bool:
        if node.id in self.more:
            return True
        found = self._cut.get(node.id)
        if found is None:
            found = self._cut[node.id] = self._is_cut(node)
        return found

    def must_be_cut(self, node) -> bool:
        return self.meets(node) or self.leaves(node)

    def _is_cut(self, node) -> bool:
        if node.type == "lambda_expression":
            return False
        if self.must_be_cut(node):
            return True
        if node.type == "for_statement":
            return self._takes_turns(node)
        if node.type == "if_statement" and self.is_masked(node):
            return True
        if node.type in ("compound_statement", "if_statement"):
            branches = statements_of(node)
            if node.type == "if_statement":
                branches = [node.child_by_field_name("consequence"), alternative_of(node)]
            return any(b is not None and self.is_cut(b) for b in branches)
        return False

    def is_masked(self, node) -> bool:
        """Returns true if an `if` is better run with a mask: the condition is evaluated first for all threads (`if
        (lane == 0)` and the like)."""
        if alternative_of(node) is not None or is_constexpr_if(node):
            return False
        clause = node.child_by_field_name("condition")
        value = clause.child_by_field_name("value") if clause is not None else None
        if value is None or value.type != "binary_expression":
            return False
        operator = self._source.node_text(value.child_by_field_name("operator"))
        if operator not in ("==", "<", ">", "<=", ">="):
            return False
        return not any(
            n.type in ("subscript_expression", "call_expression", "pointer_expression")
            for n in walk(value)
        )

    def _takes_turns(self, loop) -> bool:
        """Returns true if a loop is interchanged with the work-item loop, so that all threads run one iteration before
        the next: adjacent threads then access contiguous memory."""
        body = loop.child_by_field_name("body")
        initializer = loop.child_by_field_name("initializer")
        condition = loop.child_by_field_name("condition")
        if initializer is None or initializer.type != "declaration" or condition is None:
            return False
        if condition.type != "binary_expression" or self.leaves(loop):
            return False
        if any(n.type in ("break_statement", "continue_statement") for n in walk(body)):
            return False
        bound = condition.child_by_field_name("right")
        if bound.type == "number_literal":
            return not re.fullmatch(r"\d+[uU]?", self._source.node_text(bound)) or (
                int(self._source.node_text(bound).rstrip("uU")) > _LARGEST_KEPT_LOOP
            )
        return True

    def closure_around(self, node):
        """Returns the innermost closure around a node, or None."""
        around = [
            c
            for c in self.closures
            if c.start_byte <= node.start_byte and node.end_byte <= c.end_byte
        ]
        return min(around, key=lambda c: c.end_byte - c.start_byte, default=None)

    def loops_of_a_thread(self, node) -> int:
        """Returns the number of loops around a node that each thread runs by itself."""
        loops = [
            loop
            for loop in self._loops
            if loop.start_byte <= node.start_byte and node.end_byte <= loop.end_byte
        ]
        return sum(1 for _ in itertools.dropwhile(self.is_cut, loops))

    @functools.cached_property
    def _loops(self) -> list:
        """The loops of the body, outer ones before inner ones."""
        return [n for n in walk(self._body) if n.type in LOOPS and n.id != self._body.id]
