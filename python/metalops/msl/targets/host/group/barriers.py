"""Barriers that only a part of a threadgroup reaches."""

from __future__ import annotations

from ....analysis.cuts import NotCut
from ....source.tree import walk
from ....source.vocabulary import THREAD_ATTRIBUTES
from .context import FunctionContext
from .masks import Masks
from .parameters import Parameters


class BarrierChecks:
    """Rejects barriers under conditions that certainly vary."""

    def __init__(self, context: FunctionContext, parameters: Parameters, masks: Masks):
        self._call_graph = context.call_graph
        self._body = context.body
        self._kernel = context.kernel
        self._parameters = parameters
        self._masks = masks

    def check(self, call) -> None:
        """Raises NotCut if a barrier is meant for a part of the group: such simdgroups may wait at different barriers.
        If a condition merely might vary, it is checked at run time that all threads are there."""
        if self._call_graph.surely_has_barrier(call):
            if any(map(self._is_of_position, self._masks.conditions)):
                raise NotCut("a threadgroup_barrier for a part of the threadgroup")

    def _is_of_position(self, node) -> bool:
        """Returns true if a value depends on the thread's position in the grid, and otherwise only on values known
        before the launch."""
        found = False
        for n in walk(node):
            if n.type in ("call_expression", "subscript_expression", "pointer_expression"):
                return False
            variable = self._body.variables.variable_named(n)
            if variable is None or variable.is_of_group:
                continue
            if not variable.is_parameter:
                if variable.value is None or not self._is_of_position(variable.value):
                    return False
                found = True
            elif (
                self._kernel is None
                or self._body.cuts.closure_around(variable.identifier) is not None
            ):
                return False
            else:
                parameter = self._kernel.parameters[self._parameters.position_of(variable)]
                if parameter.kind != "builtin" or variable.definitions:
                    return False
                found |= THREAD_ATTRIBUTES[parameter.attribute].differs_in_group
        return found
