"""Expressions in which threads synchronise."""

from __future__ import annotations

from collections.abc import Callable

from ....analysis.cuts import NotCut
from ....dialect import names
from ....dialect.edits import Mapped
from .calls import ONCE, GroupCalls
from .context import FunctionContext
from .predication import Predication
from .rewriter import Rewriter
from .work_items import WorkItemLoops

_S = names.SUPPORT


class Lowering:
    """Lowers expressions: emits the parts that synchronise, in the order of their evaluation, before the rest."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        work_items: WorkItemLoops,
        predication: Predication,
        group_calls: GroupCalls,
        emit_closure: Callable[[object, str, Mapped], None],
    ):
        self._body = context.body
        self._new = context.new
        self._source = context.source
        self._sync = context.sync
        self._rewriter = rewriter
        self._work_items = work_items
        self._predication = predication
        self._group_calls = group_calls
        self._emit_closure = emit_closure

    def lower(self, node, out: Mapped) -> list[tuple[int, int, str]]:
        """Emits the calls in an expression that synchronise; returns the text to substitute for each."""
        if not self._body.cuts.meets(node):
            return []
        kind = node.type
        if kind == "lambda_expression":
            name = self._new("closure")
            self._emit_closure(node, name, out)
            return [(node.start_byte, node.end_byte, name)]
        if kind == "conditional_expression" and any(
            self._body.cuts.meets(node.child_by_field_name(arm))
            for arm in ("consequence", "alternative")
        ):
            return [(node.start_byte, node.end_byte, self._chosen(node, out))]
        if (
            kind == "binary_expression"
            and self._source.node_text(node.child_by_field_name("operator"))
            in ("&&", "||", "and", "or")
            and self._body.cuts.meets(node.child_by_field_name("right"))
        ):
            return [(node.start_byte, node.end_byte, self._decided(node, out))]
        replaced = []
        for child in node.named_children:
            replaced += self.lower(child, out)
        if kind == "binary_expression" and self._sync.meets(node):
            return [
                (
                    node.start_byte,
                    node.end_byte,
                    self._group_calls.emit_product(node, replaced, out),
                )
            ]
        if kind == "call_expression" and (meeting := self._sync.meets(node)):
            inside = [r for r in replaced if node.start_byte <= r[0] and r[1] <= node.end_byte]
            text = self._group_calls.emit(node, meeting, inside, out)
            return [(node.start_byte, node.end_byte, text)]
        return replaced

    def lower_uniform(self, node, out: Mapped) -> list[tuple[int, int, str]]:
        """As lower(), for an expression or a statement that is uniform."""
        replaced = self.lower(node, out)
        if not all(text.startswith(ONCE) for _, _, text in replaced):
            raise NotCut("threads synchronise in uniform code")
        return replaced

    def declare(self, node, name: str, out: Mapped) -> None:
        """Emits a call that synchronises, whose result is the value of a variable."""
        replaced = [r for child in node.named_children for r in self.lower(child, out)]
        self._group_calls.emit(node, self._sync.meets(node), replaced, out, name)

    def _chosen(self, node, out: Mapped) -> str:
        """Emits `a ? b : c`, with a call that synchronises in b or c."""
        condition = node.child_by_field_name("condition")
        arms = [node.child_by_field_name(arm) for arm in ("consequence", "alternative")]
        replaced = self.lower(condition, out)
        name = self._new("value")
        out.add(f"{_S}::Lanes<{_S}::decayed_t<decltype(")
        out.add(self._rewriter.expression(node))
        out.add(f")>> msl_lanes_{name}(msl_g); auto& {name} = msl_lanes_{name}[0]; (void){name};\n")
        yes, no = self._predication.split(condition, replaced, out)
        for mask, arm in ((yes, arms[0]), (no, arms[1])):
            self._predication.branch(mask, lambda out, arm=arm: self._assign(name, arm, out), out)
        return name

    def _decided(self, node, out: Mapped) -> str:
        """Emits `a && b` or `a || b`, with a call that synchronises in b."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        replaced = self.lower(left, out)
        name = self._new("value")
        out.add(
            f"{_S}::Lanes<bool> msl_lanes_{name}(msl_g); auto& {name} = msl_lanes_{name}[0]; "
            f"(void){name};\n"
        )
        yes, no = self._predication.split(left, replaced, out)
        is_and = self._source.node_text(node.child_by_field_name("operator")) in ("&&", "and")
        others, known = (no, "false") if is_and else (yes, "true")
        out.add(
            f"{_S}::each<true>(msl_g, {others}, [&](const {_S}::Numbered msl_t) MSL_LANE_LOOP "
            f"{{ msl_lanes_{name}[msl_t.slot] = {known}; }});\n"
        )
        self._predication.branch(
            yes if is_and else no, lambda out: self._assign(name, right, out), out
        )
        return name

    def _assign(self, name: str, node, out: Mapped) -> None:
        replaced = self.lower(node, out)
        body = Mapped(f"msl_lanes_{name}[msl_t.slot] = ")
        body.add(self._rewriter.expression(node, replaced))
        body.add(";")
        self._work_items.each(
            [node], self._body.variables.used_in(node), [t for _, _, t in replaced], body, out
        )
