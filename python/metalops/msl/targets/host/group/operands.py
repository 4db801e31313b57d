"""The operands of calls that all threads of a mask make together."""

from __future__ import annotations

from ....analysis.program import declarator_kinds, parameters_of
from ....analysis.variables import Kind
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import without_parentheses
from .context import FunctionContext
from .rewriter import Rewriter
from .work_items import WorkItemLoops

_S = names.SUPPORT


class Operands:
    """Emits arguments and operands: uniform ones once, varying ones for all threads."""

    def __init__(self, context: FunctionContext, rewriter: Rewriter, work_items: WorkItemLoops):
        self._source = context.source
        self._effects = context.effects
        self._body = context.body
        self._new = context.new
        self._rewriter = rewriter
        self._work_items = work_items

    def argument(self, call, position: int, argument, replaced, own, out: Mapped):
        """Returns how the argument varies, its text in the pack, and its text as one thread's value."""
        by_reference = any(
            position < len(p := parameters_of(self._source, f))
            and declarator_kinds(p[position][0].child_by_field_name("declarator"))[:1]
            == ["reference"]
            for f in own
        ) or (not own and self._effects.writes(call, position))
        inner = without_parentheses(argument)
        variable = self._body.variables.variable_named(inner)
        if inner.type == "lambda_expression" and replaced:
            return Kind.GROUP, f"{_S}::same({replaced[0][2]})", replaced[0][2]
        if self._body.is_same(argument):
            name = self.name_uniform(argument, out, replaced)
            return Kind.GROUP, f"{_S}::same({name})", name
        kept = self._kept(argument, replaced, out)
        if kept is not None:
            return Kind.THREAD, *kept
        is_written = self._effects.writes(call, position)
        if is_written and not self._effects.surely_writes(call, position):
            by_reference, is_written = True, False
        if is_written or (
            by_reference
            and inner.type
            in ("identifier", "subscript_expression", "field_expression", "pointer_expression")
        ):
            if variable is None or variable.kind is not Kind.AGAIN:
                pointers = self._work_items.evaluate(argument, replaced, out, as_address=True)
                return Kind.THREAD, f"{_S}::referred({pointers})", f"*{pointers}[0]"
        name = self._work_items.evaluate(argument, replaced, out)
        return Kind.THREAD, f"{_S}::at({name})", f"{name}[0]"

    def operand(self, node, replaced, out: Mapped) -> tuple[str, str]:
        """Returns the text in a pack for a varying value, and for the value of one thread."""
        kept = self._kept(node, replaced, out)
        if kept is not None:
            return kept
        name = self._work_items.evaluate(node, replaced, out)
        return f"{_S}::at({name})", f"{name}[0]"

    def name_uniform(self, node, out: Mapped, replaced=()) -> str:
        """Evaluates a uniform expression; returns its name."""
        name = self._new("same")
        out.add(f"auto&& {name} = ")
        out.add(self._rewriter.expression(node, replaced))
        out.add(";\n")
        return name

    def _kept(self, node, replaced, out: Mapped) -> tuple[str, str] | None:
        """Returns the texts that operand() does for a value that is privatised already, else None."""
        inner = without_parentheses(node)
        variable = self._body.variables.variable_named(inner)
        if variable is not None and variable.kind is Kind.THREAD and not variable.is_array:
            if not variable.is_reference or variable.is_parameter:
                return f"{_S}::at(msl_lanes_{variable.name})", variable.name
        if not replaced and self._is_one_element(inner):
            name = self._new("element")
            out.add(f"auto* const {name} = &")
            out.add(self._rewriter.expression(inner))
            out.add(";\n")
            return name, f"{name}[0]"
        if len(replaced) == 1 and (inner.start_byte, inner.end_byte) == replaced[0][:2]:
            name = replaced[0][2]
            return f"{_S}::at(msl_lanes_{name})", name
        return None

    def _is_one_element(self, node) -> bool:
        """Returns true for an element with uniform indices of an array whose copies are stored element by element (see
        is_spread)."""
        indices = []
        while node.type == "subscript_expression":
            indices.append(node.child_by_field_name("indices"))
            node = node.child_by_field_name("argument")
        variable = self._body.variables.variable_named(node)
        return (
            variable is not None
            and self._body.arrays.is_spread(variable)
            and len(indices) == len(variable.declared.kinds)
            and all(map(self._body.is_same, indices))
        )
