"""Shuffles that may take the value of a lane which takes no part: where lanes may have diverged since the variable that is
shuffled was declared, such a lane gives the variable's last value, as on a GPU.

Only variables themselves are followed: `simd_shuffle(v, lane)`, not `simd_shuffle(2 * v, lane)`. They are parameters or
stand in a block of the function, or lambda, in which they are shuffled. A lane has the variable if it was active at the
declaration.
"""

from __future__ import annotations

import bisect

from ..source.tree import LOOPS, walk, without_parentheses
from ..source.vocabulary import SYNCHRONISING
from .calls import CallGraph
from .program import Function, name_node
from .scopes import Declaration

SHUFFLES = frozenset(
    name for name in SYNCHRONISING if "_shuffle" in name or name.endswith("_broadcast")
)
_CALLS = "(call_expression) @c"
_BRANCHES = {"if_statement", "switch_statement", "conditional_expression"}
_CHOICES = {"conditional_expression", "binary_expression"}
_EXITS = {"return_statement", "break_statement", "continue_statement", "goto_statement"}
_FUNCTIONS = {"function_definition", "lambda_expression"}
_NO_VALUES = {"static", "constexpr", "volatile", "extern"}


class LastValues:
    """The shuffles of a program."""

    def __init__(self, calls: CallGraph):
        self._calls = calls
        self._of: dict[int, ShuffledVariables] = {}

    def of(self, function: Function) -> ShuffledVariables:
        found = self._of.get(function.node.start_byte)
        if found is None:
            found = ShuffledVariables(self._calls, function)
            self._of[function.node.start_byte] = found
        return found


class ShuffledVariables:
    """The shuffles of a function by which lanes may give last values.

    variables: what is shuffled, by the offset of the shuffle's name. declared: these variables, by the offset of their
    identifier.
    """

    def __init__(self, calls: CallGraph, function: Function):
        self.variables: dict[int, Declaration] = {}
        self._calls = calls
        self._source = source = calls.source
        self._places: dict[int, list[int]] = {}  # offsets, by that of the function or lambda
        self._first_exits: dict[int, int | None] = {}  # offsets, by the node id of a scope or loop
        self._diverging: dict[int, bool] = {}  # by the node id of a loop
        if not source.identifiers.isdisjoint(SHUFFLES):
            for call in source.find(_CALLS, function.node):
                variable = self._shuffled(call)
                if variable is not None and self._may_diverge(call, variable):
                    at = name_node(call.child_by_field_name("function")).start_byte
                    self.variables[at] = variable
                    self._places.setdefault(_function_around(call).start_byte, []).append(at)
        for places in self._places.values():
            places.sort()
        self.declared = {v.identifier.start_byte: v for v in self.variables.values()}

    def are_within(self, node) -> bool:
        """Returns true if one of the shuffles is within a node, and not in a lambda inside of it."""
        if not self.variables:
            return False
        places = self._places.get(_function_around(node).start_byte, ())
        at = bisect.bisect_left(places, node.start_byte)
        return at < len(places) and places[at] < node.end_byte

    def are_chosen_by(self, node) -> bool:
        """Returns true if a node is an expression that evaluates one of its operands, with one of them within."""
        return node.type in _CHOICES and self.are_within(node) and self._chooses(node)

    def diverges(self, loop) -> bool:
        """Returns true if lanes may leave a loop one by one, or skip a part of its body."""
        found = self._diverging.get(loop.id)
        if found is None:
            found = self._first_exit(loop) is not None or not self._is_counted(loop)
            self._diverging[loop.id] = found
        return found

    def _shuffled(self, call) -> Declaration | None:
        """Returns the variable that a call shuffles, if it is one."""
        callee = call.child_by_field_name("function")
        arguments = call.child_by_field_name("arguments")
        name = name_node(callee)
        if name is None or callee.type not in ("identifier", "qualified_identifier"):
            return None
        text = self._source.masked_text(name)
        if text not in SHUFFLES or not arguments.named_children:
            return None
        operand = without_parentheses(arguments.named_children[0])
        if operand.type != "identifier" or text in self._calls.lookup.functions:
            return None
        if not self._calls.is_operation_call(call):
            return None
        variable = self._calls.scopes_around(operand).declaration_of(operand)
        return variable if variable is not None and self._is_followed(variable, call) else None

    def _is_followed(self, variable: Declaration, call) -> bool:
        node = variable.node
        function = _function_around(call)
        if variable.kind == "parameter":
            body = function.child_by_field_name("body")
            if _function_around(node) != function or node.end_byte > body.start_byte:
                return False
        elif (
            variable.kind != "variable"
            or node.type != "declaration"
            or node.parent.type != "compound_statement"
            or _function_around(node) != function
        ):
            return False
        return (
            not variable.kinds
            and _NO_VALUES.isdisjoint(variable.type.split())
            and variable.address_spaces <= {"thread"}
            and variable.lambda_expression is None
        )

    def _may_diverge(self, call, variable: Declaration) -> bool:
        """Returns true if lanes that have the variable may be inactive at a call."""
        is_parameter = variable.kind == "parameter"
        scope = (
            _function_around(call).child_by_field_name("body")
            if is_parameter
            else variable.node.parent
        )
        exit_before = self._first_exit(scope)
        if exit_before is not None and exit_before < call.start_byte:
            return True
        node = call
        while node.id != scope.id:
            if self.diverges(node) if node.type in LOOPS else self._chooses(node):
                return True
            node = node.parent
        return False

    def _first_exit(self, node) -> int | None:
        """Returns the offset of the first statement by which lanes leave a construct, or an iteration, within a node."""
        if node.id not in self._first_exits:
            exits = (n.start_byte for n in _own_nodes(node) if n.type in _EXITS)
            self._first_exits[node.id] = min(exits, default=None)
        return self._first_exits[node.id]

    def _chooses(self, node) -> bool:
        if node.type == "binary_expression":
            operator = self._source.node_text(node.child_by_field_name("operator"))
            return operator in ("&&", "||", "and", "or")
        return node.type in _BRANCHES

    def _is_counted(self, loop) -> bool:
        """Returns true for `for (int i = 16; i > 0; i /= 2)` and the like, which all lanes run equally often."""
        initializer = loop.child_by_field_name("initializer")
        if loop.type != "for_statement" or initializer is None or initializer.type != "declaration":
            return False
        for field in ("initializer", "condition", "update"):
            part = loop.child_by_field_name(field)
            if part is None:
                return False
            for node in walk(part):
                if node.type in ("call_expression", "lambda_expression"):
                    return False
                if node.type == "identifier" and not self._is_equal_for_all(node, loop):
                    return False
        return not any(
            definition.start_byte >= loop.child_by_field_name("body").start_byte
            for definition in self._counters(loop)
        )

    def _counters(self, loop) -> list:
        scopes = self._calls.scopes_around(loop)
        initializer = loop.child_by_field_name("initializer")
        return [d for v in scopes.declarations if v.node == initializer for d in v.definitions]

    def _is_equal_for_all(self, name, loop) -> bool:
        scopes = self._calls.scopes_around(name)
        declaration = scopes.declaration_of(name)
        if declaration is None:  # of the loop, or of the program
            return True
        if declaration.node == loop.child_by_field_name("initializer"):
            return True
        return declaration.kind == "constant" or "constexpr" in declaration.type.split()


def _own_nodes(node):
    """Yields the nodes below one, without lambdas."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        yield inner
        waiting.extend(c for c in inner.named_children if c.type != "lambda_expression")


def _function_around(node):
    """Returns the function or lambda around a node: for a parameter its own."""
    while node.type not in _FUNCTIONS:
        node = node.parent
    return node
