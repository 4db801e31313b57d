"""Divergence: masks are split by conditions, and code runs under each."""

from __future__ import annotations

import re

from ....analysis.variables import Kind
from ....dialect import names
from ....dialect.edits import Mapped
from .context import FunctionContext
from .masks import Masks
from .parameters import Parameters, is_scalar_builtin
from .rewriter import Rewriter
from .work_items import WorkItemLoops

_S = names.SUPPORT

_NUMBER = re.compile(r"\d+[uU]?")
# Indices that select threads by comparison (group.h).
_CHOICES = {
    "thread_index_in_simdgroup": "of_every_simdgroup",
    "simdgroup_index_in_threadgroup": "of_simdgroup",
    "thread_index_in_threadgroup": "of_index",
    "thread_position_in_threadgroup": "of_x",
}


class Predication:
    """Emits the masks by which threads diverge."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        parameters: Parameters,
        masks: Masks,
        work_items: WorkItemLoops,
    ):
        self._new = context.new
        self._body = context.body
        self._source = context.source
        self._rewriter = rewriter
        self._parameters = parameters
        self._masks = masks
        self._work_items = work_items

    def split(self, condition, replaced, out: Mapped) -> tuple[str, str]:
        """Splits the mask in two by a condition; returns the names of both."""
        yes, no = self._new("yes"), self._new("no")
        out.add(f"{self._masks.type} {yes}(msl_g), {no}(msl_g); ")
        self.split_into(condition, replaced, yes, no, out)
        return yes, no

    def split_into(self, condition, replaced, yes: str, no: str, out: Mapped) -> None:
        out.add(
            f"{_S}::part<{self._work_items.independent([condition])}>(msl_g, {self._masks.active}, {yes}, {no}, "
        )
        body = Mapped("return static_cast<bool>(")
        body.add(self._rewriter.expression(condition, replaced))
        body.add(");")
        used = self._body.variables.used_in(condition)
        self._work_items.emit_lambda([condition], used, [t for _, _, t in replaced], body, out)
        out.add(");\n")

    def branch(self, mask: str, write, out: Mapped) -> None:
        """Emits the code that the threads of a mask run by themselves."""
        out.add(f"if ({mask}.any()) {{\n")
        with self._masks.under(mask):
            write(out)
        out.add("}\n")

    def selected_by_number(self, condition) -> str | None:
        """Returns the mask for `if (lane == 0)` and the like, which need not be computed thread by thread, or None."""
        if condition.type != "binary_expression":
            return None
        left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
        operator = self._source.node_text(condition.child_by_field_name("operator"))
        number = self._source.node_text(right)
        if left.type != "identifier" or operator != "==" or not _NUMBER.fullmatch(number):
            return None
        variable = self._body.variables.of.get(left.start_byte)
        if variable is None or variable.kind is not Kind.AGAIN or not variable.is_parameter:
            return None
        position = self._parameters.position_of(variable)
        choice = _CHOICES.get(self._parameters.attribute(position))
        if self._masks.is_of_simdgroup and choice != "of_every_simdgroup":
            return None
        if choice is None or not is_scalar_builtin(self._parameters.type_of(position)):
            return None
        return f"{_S}::{choice}(msl_g, {self._masks.active}, {number})"
