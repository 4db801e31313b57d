"""Arrays and other private memory of the threads, in a function that a threadgroup runs together: how its work-item loops
keep them."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..source.parse import Source
from .cuts import Cuts
from .private_memory import OF_THE_GROUP
from .program import declarator_kinds
from .variables import USES_MATRICES, Kind, Variable, Variables


class PrivateArrays:
    """How the varying arrays of one function are kept. meets, writes: as of Body. is_same: returns true if an expression is
    uniform."""

    def __init__(
        self,
        source: Source,
        body,
        cuts: Cuts,
        variables: Variables,
        meets: Callable,
        writes: Callable,
        is_same: Callable,
    ):
        self._source = source
        self._body = body
        self._cuts = cuts
        self._variables = variables
        self._meets = meets
        self._writes = writes
        self._is_same = is_same
        self._spread: dict[Variable, bool] = {}

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
                    USES_MATRICES.search(variable.type_in(self._source)) is not None
                    or not any(
                        self._cuts.loops_of_a_thread(use) > 1 for use in variable.declared.uses
                    )
                )
            )
        return found

    def is_taken_in(self, variable: Variable, nodes) -> bool:
        """Returns true if the loop body for `nodes` works on a local copy of a varying array: in nested loops compilers
        keep it in registers, where otherwise each iteration would load and store it."""
        return (
            variable.kind is Kind.THREAD
            and any(
                self._cuts.loops_of_a_thread(use) > 1
                for use in variable.declared.uses
                if any(n.start_byte <= use.start_byte < n.end_byte for n in nodes)
            )
            and self._is_only_indexed(variable)
            and not self.is_spread(variable)
            and not any(map(self._may_be_private_memory, self._variables.all))
        )

    def may_meet_itself(self, nodes) -> bool:
        """Returns true if a thread that runs `nodes` may reach private memory by two ways (aliases), and writes to it:
        vectorised threads may then reorder its accesses."""
        for variable in set().union(*map(self._variables.used_in, nodes)):
            if variable.kind is not Kind.THREAD or variable.is_of_group:
                continue
            # An argument of a closure may alias one of its captures.
            if self._may_be_private_memory(variable) and not (
                variable.is_parameter and self._cuts.closure_around(variable.identifier) is None
            ):
                return True
            ways, is_written = set(), False
            for use in variable.declared.uses:
                if any(n.start_byte <= use.start_byte < n.end_byte for n in nodes):
                    indices, whole = self._path(use)
                    ways.add(tuple(map(self._source.masked_text, indices)))
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
        variable = self._variables.variable_named(index)
        return self._is_same(index) or (
            variable is not None
            and variable.declaration.parent.type == "for_statement"
            and any(n.start_byte <= variable.identifier.start_byte < n.end_byte for n in nodes)
        )

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
        while around.id != self._body.id:
            if around.type == "for_range_loop":
                return False
            if around.type == "lambda_expression":
                variable = self._variables.of[use.start_byte]
                if around not in self._cuts.closures or variable in self._variables.copied_by(
                    around
                ):
                    return False
            around = around.parent
        return True
