"""`if` and `switch` statements that are cut."""

from __future__ import annotations

from collections.abc import Callable

from ....analysis.cuts import NotCut, condition_of
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import alternative_of, case_statements, is_constexpr_if, statements_of
from .context import FunctionContext
from .lowering import Lowering
from .masks import Masks
from .predication import Predication
from .rewriter import Rewriter
from .work_items import WorkItemLoops

_S = names.SUPPORT


class BranchStatements:
    """Emits branches: uniform ones as they are, others under masks."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        masks: Masks,
        work_items: WorkItemLoops,
        predication: Predication,
        lowering: Lowering,
        emit_block: Callable[[list, Mapped], None],
    ):
        self._body = context.body
        self._new = context.new
        self._rewriter = rewriter
        self._masks = masks
        self._work_items = work_items
        self._predication = predication
        self._lowering = lowering
        self._emit_block = emit_block

    def emit_if(self, node, out: Mapped) -> None:
        clause = node.child_by_field_name("condition")
        consequence, alternative = node.child_by_field_name("consequence"), alternative_of(node)
        if is_constexpr_if(node) or not self._body.parts(clause):
            replaced = self._lowering.lower_uniform(clause, out)
            out.add("if constexpr " if is_constexpr_if(node) else "if ")
            out.add(self._rewriter.expression(clause, replaced))
            out.add(" ")
            self._emit_compound(consequence, out)
            if alternative is not None:
                out.add("else ")
                self._emit_compound(alternative, out)
            return
        condition = condition_of(node)
        out.add("{ ")
        chosen = self._predication.selected_by_number(condition)
        if chosen is not None and alternative is None and not self._body.cuts.leaves(node):
            yes = self._new("yes")
            out.add(f"const auto {yes} = {chosen};\n")
            with self._masks.diverged(condition):
                self._predication.branch(
                    yes, lambda out: self._emit_block(statements_of(consequence), out), out
                )
            out.add("}\n")
            return
        replaced = self._lowering.lower(condition, out)
        yes, no = self._predication.split(condition, replaced, out)
        with self._masks.diverged(condition):
            self._predication.branch(
                yes, lambda out: self._emit_block(statements_of(consequence), out), out
            )
            if alternative is not None:
                self._predication.branch(
                    no, lambda out: self._emit_block(statements_of(alternative), out), out
                )
        out.add("}\n")

    def emit_switch(self, node, out: Mapped) -> None:
        cases = [c for c in node.child_by_field_name("body").named_children if c.type != "comment"]
        if any(c.type != "case_statement" for c in cases):
            raise NotCut("a switch with statements before its first case")
        clause = node.child_by_field_name("condition")
        if not self._body.parts(clause) and not self._body.parts(node):
            out.add("switch ")
            out.add(self._rewriter.expression(clause))
            out.add(" {\n")
            with self._masks.uniform_target(is_loop=False):
                for case in cases:
                    value = case.child_by_field_name("value")
                    out.add("default: {\n" if value is None else "case ")
                    if value is not None:
                        out.add(self._rewriter.expression(value))
                        out.add(": {\n")
                    self._emit_block(case_statements(case), out)
                    out.add("}\n")
            out.add("}\n")
            return
        condition = condition_of(node)
        replaced = self._lowering.lower(condition, out)
        out.add("{ ")
        value = self._work_items.evaluate(condition, replaced, out)
        active, rest = self._new("active"), self._new("rest")
        out.add(
            f"{_S}::Mask {active}(msl_g, {self._masks.active}), {rest}(msl_g, {self._masks.active}); {active}.clear();\n"
        )
        labels = [c.child_by_field_name("value") for c in cases]
        for label in labels:
            if label is not None:
                out.add(f"{_S}::remove_where(msl_g, {rest}, {_S}::at({value}), ")
                out.add(self._rewriter.expression(label))
                out.add(");\n")
        with self._masks.varying_target(self._masks.depth), self._masks.under(active):
            for case, label in zip(cases, labels, strict=True):
                if label is None:
                    out.add(f"{active}.add({rest});\n")
                else:
                    around = self._masks.enclosing
                    out.add(f"{_S}::add_where(msl_g, {around}, {active}, {_S}::at({value}), ")
                    out.add(self._rewriter.expression(label))
                    out.add(");\n")
                out.add(f"if ({active}.any()) {{\n")
                self._emit_block(case_statements(case), out)
                out.add("}\n")
        out.add("}\n")

    def _emit_compound(self, node, out: Mapped) -> None:
        out.add("{\n")
        self._emit_block(statements_of(node), out)
        out.add("}\n")
