"""Lambdas in which threads synchronise: closures (include/msl/host/closures.h), which all threads of a mask call
together.

A closure is written where the lambda stands, as a lambda that refers to the function's privatised variables. Variables
that the lambda captures by value and that may change are copied there. Its parameters are varying.
"""

from __future__ import annotations

from collections.abc import Callable

from ....analysis.cuts import NotCut
from ....analysis.program import declared_identifier, parameters_of_lambda, takes_reference
from ....analysis.variables import Kind, Variable
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import is_mutable
from .calls import GroupCalls
from .closure_uses import ClosureUses
from .context import FunctionContext
from .context_arrays import ContextArrays
from .lowering import Lowering
from .masks import Masks
from .rewriter import Rewriter
from .work_items import WorkItemLoops

_S = names.SUPPORT


class Closures:
    """Emits closures."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        masks: Masks,
        arrays: ContextArrays,
        work_items: WorkItemLoops,
        closure_uses: ClosureUses,
        group_calls: GroupCalls,
        lowering: Lowering,
        emit_body: Callable[[object, list[tuple], Mapped], None],
    ):
        self._new = context.new
        self._source = context.source
        self._body = context.body
        self._rewriter = rewriter
        self._masks = masks
        self._arrays = arrays
        self._work_items = work_items
        self._closure_uses = closure_uses
        self._group_calls = group_calls
        self._lowering = lowering
        self._emit_body = emit_body

    def emit(self, node, name: str, out: Mapped) -> None:
        """Emits the closure of a lambda_expression."""
        self._group_calls.note_closure()
        copies = self._copy_captured(node, out)
        plain = self._new("plain")
        out.add(f"const auto {plain} = [&] {{ return ")
        out.add(self._rewriter.expression(node))
        out.add(f"; }}; const auto {name} = {_S}::closure([&](auto, const {_S}::Threads&, ")
        out.add("const auto& msl_mask, const auto& msl_pack")
        given = []
        for position, (parameter, start, end) in enumerate(parameters_of_lambda(node)):
            out.add(", ")
            out.add(self._rewriter.copy(start, end))
            identifier = declared_identifier(parameter.child_by_field_name("declarator"))
            if identifier is None:
                given.append(f"msl_unnamed_{position}")
                out.add(f" {given[-1]}")
            else:
                given.append(self._source.node_text(identifier))
        arguments = ", ".join(f"static_cast<decltype({g})&&>({g})" for g in given)
        result = f"{_S}::decayed_t<decltype({plain}()({arguments}))>"
        with self._masks.closure(self._closure_uses.gives_value(node)):
            if self._masks.result is Kind.THREAD:
                out.add(f") -> {_S}::Lanes<{result}> {{\n")
                out.add(f"{_S}::Lanes<{result}> msl_result(msl_g);\n")
                out.add(f"const auto msl_at_result = {_S}::at(msl_result);\n")
            else:
                out.add(f") -> {_S}::Nothing {{\n")
            for copy in copies:
                out.add(f"{copy}\n")
            for position, parameter in enumerate(parameters_of_lambda(node)):
                self._take_argument(position, parameter, out)
            self._emit_body(
                node.child_by_field_name("body"), self._body.control.returns_of[node.id], out
            )
        out.add(f"}}, {plain}); (void){name};\n")

    def _take_argument(self, position: int, parameter, out: Mapped) -> None:
        identifier = declared_identifier(parameter[0].child_by_field_name("declarator"))
        if identifier is None:
            return
        variable = self._body.variables.of[identifier.start_byte]
        given = f"msl_pack.template get<{position}>()"
        if variable.is_reference and (
            variable.is_array or takes_reference(self._source, parameter)
        ):
            out.add(f"const auto msl_lanes_{variable.name} = {given};\n")
        else:
            self._arrays.copy_parameter(
                variable.name, f"msl_from = {given}", "msl_from[msl_t.slot]", out
            )

    def _copy_captured(self, node, out: Mapped) -> list[str]:
        """Copies variables that a lambda captures by value and that may change; returns the declarations of the copies
        inside of it."""
        inside = []
        copied = sorted(self._body.variables.copied_by(node), key=lambda v: v.identifier.start_byte)
        changing = [
            v
            for v in copied
            if v.kind is not Kind.AGAIN and (is_mutable(node) or self._body.variables.may_change(v))
        ]
        self._check_remade(node, changing)
        for variable in changing:
            name, copy = variable.name, self._new("captured")
            if variable.kind is Kind.GROUP:
                out.add(f"const auto {copy} = {name};\n")
                inside.append(f"const auto& {name} = {copy};")
                continue
            if variable.is_reference and not variable.is_parameter:
                raise NotCut("a lambda that has a copy of what a variable refers to")
            out.add(
                f"const auto {copy} = {_S}::captured(msl_g, {self._masks.active}, "
                f"{_S}::at(msl_lanes_{name}));\n"
            )
            inside.append(
                f"const auto& msl_lanes_{name} = {copy}; auto& {name} = msl_lanes_{name}[0]; (void){name};"
            )
        for child in node.child_by_field_name("captures").named_children:
            if child.type == "lambda_capture_initializer":
                inside.append(self._initialise_capture(child, out))
        return inside

    def _check_remade(self, node, changing: list[Variable]) -> None:
        """Raises NotCut if a lambda that is rematerialised inside would refer to a copy."""
        for variable in self._body.variables.captured_by(node):
            value = variable.declared.lambda_expression
            if variable.kind is not Kind.AGAIN or value is None:
                continue
            if not self._body.variables.captured_by(value).isdisjoint(changing):
                raise NotCut("a lambda that has a copy of what another one refers to")

    def _initialise_capture(self, capture, out: Mapped) -> str:
        if any(c.type == "&" for c in capture.children):
            raise NotCut("a lambda with a reference of its own, in which threads synchronise")
        value = capture.child_by_field_name("right")
        copy = self._work_items.evaluate(value, self._lowering.lower(value, out), out)
        name = self._source.node_text(capture.child_by_field_name("left"))
        return f"const auto& msl_lanes_{name} = {copy}; auto& {name} = msl_lanes_{name}[0]; (void){name};"
