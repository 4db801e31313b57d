"""Uniformity analysis of a function that a whole threadgroup runs together: which statements must be split at
synchronisation points (cuts), which values are uniform, and where threads diverge.

Uniform values are computed once, in the order of the program: as if the threads ran in lockstep, which is one of the
orders in which a GPU may run them.
"""

from __future__ import annotations

from collections.abc import Callable

from ..source.parse import Source
from ..source.tree import LOOPS
from .control import Control
from .cuts import Cuts
from .private_arrays import PrivateArrays
from .rematerialised import Rematerialisation
from .scopes import FunctionScopes
from .variables import NAMES, USES_MATRICES, Kind, Variable, Variables


class Body:
    """The analysis of one function, for given kinds of its parameters: its parts.

    scopes: of the function. parameters: (parameter node, Kind) each. meets: returns how a call synchronises ("barrier",
    "simd", "tensor", "function") or None; for a lambda, true if threads may synchronise in it; for a binary expression, true if
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
        self.cuts = Cuts(source, body, meets)
        self.control = Control(body, self.cuts)
        self.variables = Variables(source, body, scopes, parameters, self.cuts, self.control, meets, writes)  # fmt: skip
        again = Rematerialisation(source, self.variables, members)
        self.uniformity = Uniformity(source, self.control, self.variables, again, meets, is_pure, members)  # fmt: skip
        self.is_same, self.parts = self.uniformity.is_same, self.uniformity.parts
        self.arrays = PrivateArrays(source, body, self.cuts, self.variables, meets, writes, self.is_same)  # fmt: skip


def _never(call) -> bool:
    return False


class Uniformity:
    """The kinds of the variables of one function, and which expressions are uniform. meets, is_pure: as of Body. members:
    names of members of its class."""

    def __init__(
        self,
        source: Source,
        control: Control,
        variables: Variables,
        again: Rematerialisation,
        meets: Callable,
        is_pure: Callable,
        members: frozenset[str],
    ):
        self._source = source
        self._control = control
        self._variables = variables
        self._again = again
        self._meets = meets
        self._is_pure = is_pure
        self._members = members
        # Returns true if a call gives each thread that runs the same value, whatever its first argument; for threads of a
        # simdgroup.
        self.gives_same: Callable = _never
        self._decide()

    def _decide(self) -> None:
        for variable in self._variables.all:
            if variable.definitions and self._names_shared_memory(variable):
                variable.is_of_group = True  # it has an address, of memory that nobody writes here
            if variable.is_of_group:
                variable.kind = Kind.GROUP
            elif variable.is_parameter:
                if variable.kind is Kind.AGAIN and (
                    variable.definitions or variable in self._variables.held
                ):
                    variable.kind = Kind.THREAD
            elif variable.conditions is None:
                variable.kind = Kind.THREAD
            elif variable.is_array or USES_MATRICES.search(variable.type_in(self._source)):
                variable.kind = Kind.THREAD
            elif variable.value is None and not variable.definitions:
                variable.kind = Kind.THREAD
        changed = True
        while changed:
            changed = False
            for variable in self._variables.all:
                if variable.kind is Kind.GROUP and not variable.is_of_group:
                    if not self._is_of_group(variable) or self._is_among_others(variable):
                        variable.kind = Kind.THREAD
                        changed = True
        for variable in self._variables.all:
            if variable.kind is Kind.THREAD and self._again.is_cheaper(variable):
                variable.kind = Kind.AGAIN

    @staticmethod
    def _names_shared_memory(variable: Variable) -> bool:
        """Returns true for a uniform parameter that is a reference into constant or device memory."""
        spaces = {"constant", "device"} & set(variable.declared.address_spaces)
        is_uniform = variable.is_parameter and variable.kind is Kind.GROUP
        return is_uniform and variable.is_reference and bool(spaces)

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
        return any(v.kind is Kind.THREAD for v in self._variables.declared_by(variable.declaration))

    def parts(self, condition) -> bool:
        """Returns true if threads may diverge at a condition, or leave a loop (given by itself) at different times."""
        if condition.type in LOOPS or condition.type == "switch_statement":
            depth = None
            for conditions in self._control.of_exits(condition):
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
            if kind in NAMES:
                variable = self._variables.of.get(n.start_byte)
                if variable is None:
                    if self._source.node_text(n) in self._members:
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
                if self.gives_same(n):
                    waiting += n.child_by_field_name("arguments").named_children[1:]
                    continue
                if self._meets(n) or not self._is_pure(n):
                    return False
            if kind == "pointer_expression" and n.children[0].type == "&":
                variable = self._variables.base(n.child_by_field_name("argument"))
                if variable is not None and variable.kind is not Kind.GROUP:
                    return False
            waiting.extend(n.children)
        return True
