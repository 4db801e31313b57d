"""Uniformity analysis of a function that a whole threadgroup runs together: which statements must be split at
synchronisation points, which values are uniform, and where threads diverge.

A statement is *cut* (split into regions, as in pocl) when something inside of it synchronises, when threads may leave
it early, or when it is a loop whose iterations are better interchanged with the work-item loop. All others run as a
whole, thread by thread, in one work-item loop. Uniform values are computed once, in the order of the program: as if the
threads ran in lockstep, which is one of the orders in which a GPU may run them.
"""

from __future__ import annotations

import bisect
import enum
import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..source.parse import Source
from ..source.tree import (
    LOOPS,
    alternative_of,
    captures_by_value,
    case_statements,
    is_constexpr_if,
    is_mutable,
    statements_of,
    walk,
    without_parentheses,
)
from .private_memory import OF_THE_GROUP
from .program import declarator_kinds, parameters_of_lambda, takes_reference
from .scopes import Declaration, FunctionScopes

_MEETINGS = {"call_expression", "lambda_expression", "binary_expression"}
_LARGEST_KEPT_LOOP = 16
# `T v(a, b);` is parsed as a function, and its arguments as parameter types.
_NAMES = {"identifier", "type_identifier"}
# Types and functions whose values depend on the lane.
USES_MATRICES = re.compile(r"\bsimdgroup_(?:matrix|\w+8x8)|diagonal_simdgroup_matrix")


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


class Kind(enum.Enum):
    """How a variable is kept. GROUP: uniform, kept once. AGAIN: rematerialised in every work-item loop that uses it.
    THREAD: varying, privatised (one copy for each thread)."""

    GROUP = "group"
    AGAIN = "again"
    THREAD = "thread"


@dataclass(eq=False)
class Variable:
    """A variable or parameter of a function.

    value: its initialiser. is_of_group: true for a constant expression, a closure, or memory that the threads share.
    conditions: control dependences, the conditions around its declaration; None inside a statement that runs as a
    whole. definitions: the expressions that are assigned to it, each with the conditions around; None where they are
    not known.
    """

    declared: Declaration
    value: object | None
    is_parameter: bool
    is_of_group: bool
    conditions: tuple | None
    kind: Kind
    definitions: list[tuple[object | None, tuple | None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def identifier(self):
        return self.declared.identifier

    @property
    def declaration(self):
        """The whole declaration, or a parameter."""
        return self.declared.node

    @property
    def declarator(self):
        return self.declared.declarator

    @property
    def is_reference(self) -> bool:
        return self.declared.kinds[:1] == ["reference"]

    @property
    def is_array(self) -> bool:
        return "array" in self.declared.kinds

    @property
    def uses(self) -> list[int]:
        return [node.start_byte for node in self.declared.uses]

    @property
    def last_use(self) -> int:
        return max(self.uses, default=self.identifier.start_byte)


class Body:
    """The analysis of one function, for given kinds of its parameters.

    scopes: of the function. parameters: (parameter node, Kind) each. meets: returns how a call synchronises ("barrier",
    "simd", "function") or None; for a lambda, true if threads may synchronise in it; for a binary expression, true if
    it is a matrix product. writes: returns true if a call may change its argument at a position. is_pure: returns true
    if a call has no side effects.
    """

    def __init__(
        self,
        source: Source,
        body,
        scopes: FunctionScopes,
        parameters: list[tuple[object, Kind]],
        meets: Callable,
        writes: Callable,
        is_pure: Callable,
        members: frozenset[str] = frozenset(),
    ):
        self.source = source
        self.body = body
        self._meets = meets
        self._meetings = [  # in order of position
            (n.start_byte, n.end_byte) for n in walk(body) if n.type in _MEETINGS and meets(n)
        ]
        self.closures = [n for n in walk(body) if n.type == "lambda_expression" and meets(n)]
        self._writes = writes
        self._is_pure = is_pure
        self._members = members
        self.variables: list[Variable] = []
        self.of: dict[int, Variable] = {}  # by the offset of an identifier
        self._declared: dict[int, list[Variable]] = {}  # by the offset of a declaration
        self._cut: dict[int, bool] = {}
        self._spread: dict[Variable, bool] = {}
        self._simple_definitions: dict[int, tuple] = {}  # node id of an assignment: conditions
        self._level: dict[int, tuple] = {}  # node id of a cut declaration: conditions
        self._exits: dict[int, list] = {}  # node id of a loop: conditions of its exits
        self.returns: list[tuple] = []  # the conditions of every return
        self.returns_of: dict[int, list[tuple]] = {}  # returns of a closure, by its node id
        self._structure(statements_of(body), (), None, self.returns)
        for closure in self.closures:
            returns = self.returns_of[closure.id] = []
            self._structure(statements_of(closure.child_by_field_name("body")), (), None, returns)
        kinds = {node.start_byte: kind for node, kind in parameters}
        for closure in self.closures:
            kinds |= {node.start_byte: Kind.THREAD for node, _, _ in parameters_of_lambda(closure)}
        self._declare(scopes, kinds)
        self._find_definitions()
        self.held = self._find_held()
        self._decide()

    # ---- cut statements --------------------------------------------------------------------------

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

    def leaves_at_all(self, node) -> bool:
        """Returns true if threads may leave the loop with this body, or the function."""
        return any(n.type in ("break_statement", "return_statement") for n in walk(node))

    def is_cut(self, node) -> bool:
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
        operator = self.source.node_text(value.child_by_field_name("operator"))
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
            return not re.fullmatch(r"\d+[uU]?", self.source.node_text(bound)) or (
                int(self.source.node_text(bound).rstrip("uU")) > _LARGEST_KEPT_LOOP
            )
        return True

    def captured_by(self, node) -> set[Variable]:
        """Returns the variables that a lambda_expression (or another node) mentions and does not declare itself."""
        return {
            v
            for v in self.used_in(node)
            if not node.start_byte <= v.identifier.start_byte < node.end_byte
        }

    def copied_by(self, node) -> set[Variable]:
        """Returns the variables that a lambda_expression captures by value."""
        return {
            v
            for v in self.captured_by(node)
            if captures_by_value(self.source, node, v.name) and not v.is_of_group
        }

    def closure_around(self, node):
        """Returns the innermost closure around a node, or None."""
        around = [
            c
            for c in self.closures
            if c.start_byte <= node.start_byte and node.end_byte <= c.end_byte
        ]
        return min(around, key=lambda c: c.end_byte - c.start_byte, default=None)

    # ---- variables -------------------------------------------------------------------------------

    def _is_shared_reference(self, parameter: Declaration) -> bool:
        """Returns true if a uniform parameter is a reference to memory that the threads share and may write."""
        node = parameter.node
        start = self.source.previous_code(node.start_byte) + 1
        return parameter.kinds[:1] == ["reference"] and (
            "threadgroup" in parameter.address_spaces
            or takes_reference(self.source, (node, start, node.end_byte))
        )

    def _declare(self, scopes: FunctionScopes, kinds: dict[int, Kind]) -> None:
        """Collects the variables. kinds: of the function's parameters, by the offset of the parameter."""
        for declaration in scopes.declarations:
            if declaration.kind in ("type", "constant"):
                continue
            node = declaration.node
            specifiers = {
                self.source.node_text(c)
                for c in node.children
                if c.type in ("type_qualifier", "storage_class_specifier")
            }
            if "volatile" in specifiers:
                raise NotCut("a volatile variable")
            kind = kinds.get(node.start_byte) if declaration.kind == "parameter" else None
            is_variable = declaration.kind == "variable" and node.type == "declaration"
            value = declaration.lambda_expression
            is_closure = value is not None and self._meets(value)
            variable = Variable(
                declaration,
                value=declaration.initialiser if node.type == "declaration" else None,
                is_parameter=kind is not None,
                is_of_group=bool({"constexpr", "static"} & specifiers)
                or is_closure
                or (
                    "threadgroup" in declaration.address_spaces
                    and not {"pointer", "reference"} & set(declaration.kinds)
                )
                or (kind is Kind.GROUP and self._is_shared_reference(declaration)),
                conditions=() if kind is not None else self._level.get(node.id),
                kind=kind or Kind.GROUP,
            )
            if variable.value is not None:
                variable.definitions.append((variable.value, variable.conditions))
            if not (variable.is_parameter or is_variable):
                variable.definitions.append((None, None))
            self.variables.append(variable)
            self._declared.setdefault(node.start_byte, []).append(variable)
            self.of[declaration.identifier.start_byte] = variable
            for use in declaration.uses:
                self.of[use.start_byte] = variable
        for variable in self.variables:
            if variable.value is not None and variable.is_reference:
                self._changed_somehow(variable.value)

    def declared_by(self, declaration) -> list[Variable]:
        return self._declared.get(declaration.start_byte, [])

    def variable_named(self, node) -> Variable | None:
        """Returns the variable that an expression consists of, or None."""
        return self.of.get(node.start_byte) if node.type == "identifier" else None

    def _find_definitions(self) -> None:
        """Collects the definitions of the variables, other than their initialisers."""
        for node in walk(self.body):
            kind = node.type
            if kind in ("assignment_expression", "update_expression"):
                self._define(node)
            elif kind == "pointer_expression" and node.children[0].type == "&":
                self._changed_somehow(node.child_by_field_name("argument"))
            elif kind == "call_expression":
                self._passed(node)

    def base(self, node) -> Variable | None:
        """Returns the variable that an assignment to `node` changes, or None."""
        node = without_parentheses(node)
        while node.type in ("subscript_expression", "field_expression"):
            if node.type == "field_expression" and node.children[1].type == "->":
                return None
            node = without_parentheses(node.child_by_field_name("argument"))
        return self.variable_named(node)

    def _define(self, node) -> None:
        target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        variable = self.base(target)
        if variable is None:
            return
        through_pointer = any(n.type == "subscript_expression" for n in walk(target))
        if through_pointer and not variable.is_array and not variable.is_parameter:
            kinds = declarator_kinds(variable.declarator)
            if "pointer" in kinds:
                return  # the pointee changes, not the pointer
        if through_pointer and variable.is_parameter:
            kinds = declarator_kinds(variable.declarator)
            if {"pointer", "array"} & set(kinds):
                return
        value = node.child_by_field_name("right") or target
        conditions = self._simple_definitions.get(node.id)
        if conditions is not None and (
            self.closure_around(node) != self.closure_around(variable.identifier)
        ):
            conditions = None
        variable.definitions.append((value if conditions is not None else None, conditions))
        if conditions is not None and node.type == "assignment_expression":
            operator = self.source.node_text(node.child_by_field_name("operator"))
            if operator != "=" or target.type != "identifier":
                variable.definitions.append((target, conditions))

    def _changed_somehow(self, node) -> None:
        variable = self.base(node) if node is not None else None
        if variable is not None and not variable.is_of_group:
            kinds = declarator_kinds(variable.declarator) if variable.declarator else []
            if node.type == "subscript_expression" and "pointer" in kinds[:1]:
                return  # an address within the pointee
            if kinds[:1] == ["array"] and variable.is_parameter:
                return
            variable.definitions.append((None, None))

    def _passed(self, call) -> None:
        """Records arguments that the callee may change, and objects whose member functions are called."""
        function = call.child_by_field_name("function")
        if function.type == "field_expression":
            self._changed_somehow(function.child_by_field_name("argument"))
        arguments = call.child_by_field_name("arguments").named_children
        for position, argument in enumerate(arguments):
            if self._writes(call, position):
                self._changed_somehow(without_parentheses(argument))

    # ---- conditions ------------------------------------------------------------------------------

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
            if kind == "declaration" or not self.is_cut(node):
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

    # ---- kinds -----------------------------------------------------------------------------------

    def _decide(self) -> None:
        for variable in self.variables:
            if variable.definitions and self._names_shared_memory(variable):
                variable.is_of_group = True  # it has an address, of memory that nobody writes here
            if variable.is_of_group:
                variable.kind = Kind.GROUP
            elif variable.is_parameter:
                if variable.kind is Kind.AGAIN and (variable.definitions or variable in self.held):
                    variable.kind = Kind.THREAD
            elif variable.conditions is None:
                variable.kind = Kind.THREAD
            elif variable.is_array or USES_MATRICES.search(self._type_of(variable)):
                variable.kind = Kind.THREAD
            elif variable.value is None and not variable.definitions:
                variable.kind = Kind.THREAD
        changed = True
        while changed:
            changed = False
            for variable in self.variables:
                if variable.kind is Kind.GROUP and not variable.is_of_group:
                    if not self._is_of_group(variable) or self._is_among_others(variable):
                        variable.kind = Kind.THREAD
                        changed = True
        for variable in self.variables:
            if variable.kind is Kind.THREAD and self._can_be_again(variable):
                variable.kind = Kind.AGAIN

    @staticmethod
    def _names_shared_memory(variable: Variable) -> bool:
        """Returns true for a uniform parameter that is a reference into constant or device memory."""
        spaces = {"constant", "device"} & set(variable.declared.address_spaces)
        is_uniform = variable.is_parameter and variable.kind is Kind.GROUP
        return is_uniform and variable.is_reference and bool(spaces)

    def _type_of(self, variable: Variable) -> str:
        node = variable.declaration.child_by_field_name("type")
        return "" if node is None else self.source.masked_text(node)

    def is_spread(self, variable: Variable) -> bool:
        """Returns true if a varying array is kept element by element, with the threads' copies of an element contiguous
        (structure of arrays): vectorised work-item loops then access contiguous memory. Not so if a thread runs nested
        loops by itself, in which an array of its own is faster (is_taken_in), unless it is an array of matrices: those
        of a simdgroup are then contiguous."""
        found = self._spread.get(variable)
        if found is None:
            found = self._spread[variable] = (
                variable.kind is Kind.THREAD
                and self._is_only_indexed(variable)
                and (
                    USES_MATRICES.search(self._type_of(variable)) is not None
                    or not any(self._loops_of_a_thread(use) > 1 for use in variable.declared.uses)
                )
            )
        return found

    def is_taken_in(self, variable: Variable, nodes) -> bool:
        """Returns true if the loop body for `nodes` works on a local copy of a varying array: in nested loops compilers
        keep it in registers, where otherwise each iteration would load and store it."""
        return (
            variable.kind is Kind.THREAD
            and any(
                self._loops_of_a_thread(use) > 1
                for use in variable.declared.uses
                if any(n.start_byte <= use.start_byte < n.end_byte for n in nodes)
            )
            and self._is_only_indexed(variable)
            and not self.is_spread(variable)
            and not any(map(self._may_be_private_memory, self.variables))
        )

    def may_meet_itself(self, nodes) -> bool:
        """Returns true if a thread that runs `nodes` may reach private memory by two ways (aliases), and writes to it:
        vectorised threads may then reorder its accesses."""
        for variable in set().union(*map(self.used_in, nodes)):
            if variable.kind is not Kind.THREAD or variable.is_of_group:
                continue
            # An argument of a closure may alias one of its captures.
            if self._may_be_private_memory(variable) and not (
                variable.is_parameter and self.closure_around(variable.identifier) is None
            ):
                return True
            ways, is_written = set(), False
            for use in variable.declared.uses:
                if any(n.start_byte <= use.start_byte < n.end_byte for n in nodes):
                    indices, whole = self._path(use)
                    ways.add(tuple(map(self.source.masked_text, indices)))
                    is_written = is_written or self._is_written(whole)
                    if not all(self._is_plain(i, nodes) for i in indices):
                        ways.add(("anywhere",))
            are_numbers = all(re.fullmatch(r"\[\d+[uU]?\]", i) for way in ways for i in way)
            if is_written and len(ways) > 1 and not are_numbers:
                return True
        return False

    def _path(self, use) -> tuple[list, object]:
        """Returns the indices after a name, and the whole lvalue that they make with it."""
        indices, node = [], use
        while True:
            around = node.parent
            if around.type == "subscript_expression" and (
                around.child_by_field_name("argument") == node
            ):
                indices.append(around.child_by_field_name("indices"))
            elif around.type not in ("field_expression", "parenthesized_expression"):
                return indices, node
            node = around

    def _is_written(self, whole) -> bool:
        around = whole.parent
        if around.type == "argument_list" and around.parent.type == "call_expression":
            position = next(i for i, n in enumerate(around.named_children) if n.id == whole.id)
            return self._writes(around.parent, position)
        if around.type == "assignment_expression":
            return around.child_by_field_name("left") == whole
        return around.type in ("update_expression", "pointer_expression") or (
            around.type == "call_expression" and whole.type == "field_expression"
        )

    def _is_plain(self, indices, nodes) -> bool:
        """Returns true if an index is uniform, or the variable of a loop in `nodes`."""
        index = indices.named_children[0] if indices.named_child_count == 1 else indices
        variable = self.variable_named(index)
        return self.is_same(index) or (
            variable is not None
            and variable.declaration.parent.type == "for_statement"
            and any(n.start_byte <= variable.identifier.start_byte < n.end_byte for n in nodes)
        )

    def _loops_of_a_thread(self, node) -> int:
        """Returns the number of loops around a node that each thread runs by itself."""
        loops = [
            loop
            for loop in self._loops
            if loop.start_byte <= node.start_byte and node.end_byte <= loop.end_byte
        ]
        return sum(1 for _ in itertools.dropwhile(self.is_cut, loops))

    @functools.cached_property
    def _exit_starts(self) -> list[int]:
        """The offsets of all return, break, continue and goto statements of the body, in order."""
        query = "[(return_statement) (break_statement) (continue_statement) (goto_statement)] @n"
        return [n.start_byte for n in self.source.find(query, self.body)]

    @functools.cached_property
    def _loops(self) -> list:
        """The loops of the body, outer ones before inner ones."""
        return [n for n in walk(self.body) if n.type in LOOPS and n.id != self.body.id]

    def _may_be_private_memory(self, variable: Variable) -> bool:
        """Returns true if it is a pointer or a reference that may point to private memory."""
        return bool({"pointer", "reference"} & set(variable.declared.kinds)) and not (
            variable.declared.address_spaces & OF_THE_GROUP
        )

    def _is_only_indexed(self, variable: Variable) -> bool:
        """Returns true if it is an array of which only elements are used, and none of them by address."""
        kinds = variable.declared.kinds
        return (
            set(kinds) == {"array"}
            and not variable.is_parameter
            and all(self._is_element(use, len(kinds)) for use in variable.declared.uses)
        )

    def _is_element(self, use, dimensions: int) -> bool:
        node = use
        for _ in range(dimensions):
            part, node = node, node.parent
            if node.type != "subscript_expression" or node.child_by_field_name("argument") != part:
                return False
        around = node.parent
        while around.type in (
            "field_expression",
            "subscript_expression",
            "parenthesized_expression",
        ):
            node, around = around, around.parent
        if around.type == "pointer_expression" and around.children[0].type == "&":
            return False
        if around.type == "init_declarator":
            declarator = around.child_by_field_name("declarator")
            if declarator_kinds(declarator)[:1] == ["reference"]:
                return False
        if around.type == "argument_list" and around.parent.type == "call_expression":
            position = next(i for i, n in enumerate(around.named_children) if n.id == node.id)
            call = around.parent
            if self._writes(call, position) and self._meets(call) != "simd":
                return False
        while around.id != self.body.id:
            if around.type == "for_range_loop":
                return False
            if around.type == "lambda_expression":
                variable = self.of[use.start_byte]
                if around not in self.closures or variable in self.copied_by(around):
                    return False
            around = around.parent
        return True

    def _is_of_group(self, variable: Variable) -> bool:
        for value, conditions in variable.definitions:
            if value is None or conditions is None or not self.is_same(value):
                return False
            around = conditions[len(variable.conditions) :]
            loop = variable.declaration.parent
            if loop is not None and loop.type == "for_statement":
                update = loop.child_by_field_name("update")
                if update is not None and update.start_byte <= value.start_byte < update.end_byte:
                    # Threads that have left the loop do not see the update.
                    condition = loop.child_by_field_name("condition")
                    around = [
                        c for c in around if c.id not in (loop.id, condition and condition.id)
                    ]
            if any(self.parts(c) for c in around):
                return False
        return True

    def _is_among_others(self, variable: Variable) -> bool:
        """Returns true if its declaration also declares a varying variable."""
        return any(v.kind is Kind.THREAD for v in self.declared_by(variable.declaration))

    def parts(self, condition) -> bool:
        """Returns true if threads may diverge at a condition, or leave a loop (given by itself) at different times."""
        if condition.type in LOOPS or condition.type == "switch_statement":
            depth = None
            for conditions in self._exits.get(condition.id, ()):
                inside = conditions
                for position, around in enumerate(conditions):
                    if around.id == condition.id:
                        depth = position + 1
                        inside = conditions[depth:]
                if any(
                    self.parts(c)
                    for c in inside
                    if c.type not in LOOPS and c.type != "switch_statement"
                ):
                    return True
            return False
        return not self.is_same(condition)

    def is_same(self, node) -> bool:
        """Returns true if an expression is uniform and has no other effect."""
        waiting = [node]
        while waiting:
            n = waiting.pop()
            kind = n.type
            if kind in ("lambda_expression", "this", "assignment_expression", "update_expression"):
                if n is not node or kind in ("lambda_expression", "this"):
                    return False
            if kind in _NAMES:
                variable = self.of.get(n.start_byte)
                if variable is None:
                    if self.source.node_text(n) in self._members:
                        return False
                elif variable.kind is not Kind.GROUP:
                    return False
                continue
            if kind == "qualified_identifier":
                waiting += [c for c in n.named_children if c.type == "template_function"]
                continue
            if kind == "binary_expression" and self._meets(n):
                return False
            if kind == "call_expression":
                if self._meets(n) or not self._is_pure(n):
                    return False
            if kind == "pointer_expression" and n.children[0].type == "&":
                variable = self.base(n.child_by_field_name("argument"))
                if variable is not None and variable.kind is not Kind.GROUP:
                    return False
            waiting.extend(n.children)
        return True

    _CHEAP = {
        "binary_expression", "unary_expression", "parenthesized_expression", "number_literal",
        "identifier", "field_expression", "field_identifier", "cast_expression",
        "type_descriptor", "primitive_type", "type_identifier", "sized_type_specifier",
        "qualified_identifier", "namespace_identifier", "call_expression", "argument_list",
        "template_function", "template_argument_list", "true", "false", "init_declarator",
        "conditional_expression",
    }  # fmt: skip
    _CONVERSIONS = re.compile(
        r"(?:metal::)?(?:static_cast\s*<[\w:\s]+>|min|max|"
        r"(?:u?(?:char|short|int|long)|float|half|bool|size_t|u?int(?:8|16|32|64)_t)[234]?)$"
    )

    def _can_be_again(self, variable: Variable) -> bool:
        """Returns true if rematerialising a value is cheaper than privatising it."""
        if variable.is_parameter or variable.is_array or variable.is_reference:
            return False
        if variable.conditions is None or variable.value is None or len(variable.definitions) != 1:
            return False
        declaration = variable.declaration
        if len(self.declared_by(declaration)) != 1 or variable.declarator.type == (
            "function_declarator"
        ):
            return False
        if variable in self.held or self._is_hidden(variable):
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
                callee = self.source.masked_text(n.child_by_field_name("function"))
                if not self._CONVERSIONS.match(callee):
                    return False
            if n.type in _NAMES:
                used = self.of.get(n.start_byte)
                if used is None:
                    if self.source.node_text(n) in self._members:
                        return False
                    continue
                if used.kind is Kind.THREAD:
                    return False
                if used.kind is Kind.GROUP and self._changes_within(
                    used, declaration.end_byte, variable.declared.scope.end_byte
                ):
                    return False
        return True

    def _is_hidden(self, variable: Variable) -> bool:
        """Returns true if some name in its declaration means something else in a cut part of its scope."""
        start, end = variable.declaration.end_byte, variable.declared.scope.end_byte
        names = {variable.name, *(v.name for v in self.captured_by(variable.declaration))}
        return any(
            v.name in names and v.conditions is not None and start <= v.identifier.start_byte < end
            for v in self.variables
        )

    def _can_be_made_again(self, variable: Variable) -> bool:
        """Returns true if a lambda is the same wherever it is rematerialised."""
        value = variable.value
        captures = value.child_by_field_name("captures")
        if any(n.type == "lambda_capture_initializer" for n in captures.children):
            return False
        if is_mutable(value) or any(n.type == "*" for n in captures.children):
            return False
        return not any(map(self.may_change, self.copied_by(value)))

    def may_change(self, variable: Variable) -> bool:
        """Returns true if a variable may have other values than its initial one."""
        if variable.is_reference or variable.is_array:
            return True
        if variable.is_parameter:
            return bool(variable.definitions)
        return variable.value is None or len(variable.definitions) != 1

    def _find_held(self) -> set[Variable]:
        """Returns the variables that lambdas refer to which are passed to calls that synchronise: these must keep their
        address."""
        found = set()
        for call in walk(self.body):
            if call.type != "call_expression" or not self._meets(call):
                continue
            arguments = call.child_by_field_name("arguments")
            lambdas = [n for n in walk(arguments) if n.type == "lambda_expression"]
            lambdas += [
                v.value for v in self.used_in(arguments) if v.declared.lambda_expression is not None
            ]
            for node in lambdas:
                if not self._meets(node):
                    found |= self.captured_by(node) - self.copied_by(node)
        return found

    def _changes_within(self, variable: Variable, start: int, end: int) -> bool:
        return any(
            value is None or start <= value.start_byte < end
            for value, _ in variable.definitions
            if value is not variable.value
        )

    # ---- for emission ----------------------------------------------------------------------------

    def used_in(self, node) -> set[Variable]:
        """Returns the variables that are mentioned in a node."""
        return {
            self.of[n.start_byte]
            for n in walk(node)
            if n.type in _NAMES and n.start_byte in self.of
        }
