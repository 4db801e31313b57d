"""Loops that are cut."""

from __future__ import annotations

import re
from collections.abc import Callable

from ....analysis.cuts import NotCut, condition_of
from ....analysis.variables import Kind
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import statements_of, walk
from .classification import Classification
from .context import FunctionContext
from .indices import growing_indices
from .lowering import Lowering
from .masks import Masks
from .predication import Predication
from .rewriter import Rewriter
from .work_items import LANE_TYPES, WorkItemLoops, lane_type

_S = names.SUPPORT

_SHORT = 16  # iterations that a compiler unrolls
_PROMISE = re.compile(
    r"(?m)^[ \t]*#[ \t]*pragma[ \t]+clang[ \t]+loop[ \t]+vectorize[ \t]*\([ \t]*assume_safety[ \t]*\)"
)


class LoopStatements:
    """Emits loops: uniform ones as they are, strided ones, and those that threads leave one by one."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        masks: Masks,
        work_items: WorkItemLoops,
        predication: Predication,
        lowering: Lowering,
        statements: Classification,
        emit_block: Callable[[list, Mapped], None],
    ):
        self._body = context.body
        self._source = context.source
        self._new = context.new
        self._rewriter = rewriter
        self._masks = masks
        self._work_items = work_items
        self._predication = predication
        self._lowering = lowering
        self._statements = statements
        self._emit_block = emit_block

    def emit(self, node, out: Mapped) -> None:
        if node.type == "for_range_loop":
            raise NotCut("threads synchronise in a range-based for")
        if self._statements.is_uniform_loop(node):
            self._emit_uniform(node, out)
        elif not self._body.cuts.must_be_cut(node) and self._statements.is_strided(node):
            self._emit_strided(node, out)
        else:
            self._emit_divergent(node, out)

    def _emit_uniform(self, node, out: Mapped) -> None:
        short = self._count_if_short(node)
        if short is not None:
            out.add(f"if ({short}) {{\n")
            used = {
                v
                for v in self._body.variables.used_in(node)
                if not node.start_byte <= v.identifier.start_byte < node.end_byte
            }
            local = {
                v
                for v in used
                if v.kind is Kind.THREAD
                and not (v.is_array or v.is_reference or v.is_of_group)
                and any(node.start_byte <= c.start_byte < node.end_byte for c in v.changes)
            }
            text = self._rewriter.statement(node)
            self._work_items.each([node], used, [], text, out, local=local)
            out.add("} else {\n")
        self._emit_turns(node, out)
        if short is not None:
            out.add("}\n")

    def _count_if_short(self, node) -> str | None:
        """Returns, for a loop that the lanes of a simdgroup could run each for itself and whose bound may be a constant, the
        condition that it is a small one: compilers unroll it then, and see what a lane loads beside each other."""
        if not self._masks.is_of_simdgroup or node.type != "for_statement":
            return None
        condition = node.child_by_field_name("condition")
        if self._body.cuts.must_be_cut(node) or condition is None:
            return None
        bound = condition.child_by_field_name("right")
        if bound is None or not all(map(self._may_be_constant, walk(bound))):
            return None
        if any(
            v.kind in (Kind.GROUP, Kind.SHIFTED)
            and not v.is_of_group
            and not node.start_byte <= v.identifier.start_byte < node.end_byte
            and any(node.start_byte <= c.start_byte < node.end_byte for c in v.changes)
            for v in self._body.variables.used_in(node)
        ):
            return None
        text = self._rewriter.expression(bound).text
        return f"__builtin_constant_p({text}) && ({text}) <= {_SHORT}"

    def _may_be_constant(self, node) -> bool:
        if node.type == "identifier":
            variable = self._body.variables.of.get(node.start_byte)
            return variable is None or variable.is_of_group
        return not node.is_named or node.type in ("number_literal", "binary_expression")

    def can_take_turns(self, node) -> bool:
        """Returns true if simdgroups can run the iterations of a loop by turns (emit_turn)."""
        return node.type != "for_range_loop" and self._statements.is_uniform_loop(node)

    def emit_turn(self, node, out: Mapped) -> None:
        """Emits one iteration of a uniform loop, without its initializer. `msl_goes_on`, which is false, becomes true unless
        it was the last one."""
        condition, update = (node.child_by_field_name(f) for f in ("condition", "update"))
        out.add("for (")
        if node.type == "do_statement":
            out.add("bool msl_done = false; !msl_done; msl_done = true, msl_goes_on = ")
            out.add(self._rewriter.expression(condition))
        else:
            out.add("; !msl_goes_on && (")
            out.add("true" if condition is None else self._rewriter.expression(condition))
            out.add("); ")
            if update is not None:
                out.add("void(")
                out.add(self._rewriter.expression(update))
                out.add("), ")
            out.add("msl_goes_on = true")
        out.add(") {\n")
        with self._masks.uniform_target(is_loop=True):
            self._emit_block(statements_of(node.child_by_field_name("body")), out)
        out.add("}\n")

    def _emit_turns(self, node, out: Mapped) -> None:
        initializer, condition, update = (
            node.child_by_field_name(f) for f in ("initializer", "condition", "update")
        )
        if node.type == "for_statement":
            out.add("for (")
            if initializer is not None:
                out.add(self._rewriter.statement(initializer))
            if initializer is None or initializer.type != "declaration":
                out.add(";")
            out.add(" ")
            if condition is not None:
                out.add(self._rewriter.expression(condition))
            out.add("; ")
            if update is not None:
                out.add(self._rewriter.expression(update))
            out.add(") ")
        elif node.type == "while_statement":
            out.add("while ")
            out.add(self._rewriter.expression(condition))
            out.add(" ")
        else:
            out.add("do ")
        out.add("{\n")
        body = node.child_by_field_name("body")
        with self._masks.uniform_target(is_loop=True):
            self._emit_block(statements_of(body), out)
        if self._masks.depth and any(n.type == "return_statement" for n in walk(body)):
            out.add(f"if (!{self._masks.active}.any()) break;\n")
        out.add("}\n")
        if node.type == "do_statement":
            out.add("while ")
            out.add(self._rewriter.expression(condition))
            out.add(";\n")

    def _emit_strided(self, node, out: Mapped) -> None:
        initializer = node.child_by_field_name("initializer")
        body = node.child_by_field_name("body")
        variable = self._body.variables.declared_by(initializer)[0]
        type_text = self._rewriter.unrenamed(
            initializer.child_by_field_name("type").start_byte, variable.declarator.start_byte
        ).strip()
        bound = node.child_by_field_name("condition").child_by_field_name("right")
        step = self._statements.step(node.child_by_field_name("update"), variable)
        start = variable.value
        kept = self._work_items.evaluate(start, [], out) if self._computes_more(start) else None
        indices: dict[str, list] = {}  # equal indices together, by their text
        for index in growing_indices(self._body, body, variable):
            indices.setdefault(self._source.node_text(index), []).append(index)
        first, places, turn = Mapped(), Mapped(), Mapped()
        value = Mapped("return ")
        if type_text != "auto":
            value.add(f"static_cast<{type_text}>")
        value.add("(")
        value.add(self._rewriter.expression(start) if kept is None else "msl_from[msl_t.slot]")
        value.add(");")
        if kept is None:
            lane = self._work_items.emit_lambda(
                [start], self._body.variables.used_in(start), [], value, first
            )
        else:
            lane = lane_type(value.text)
            first.add(f"[msl_from = {_S}::at({kept})](const {_S}::{lane} msl_t) MSL_LANE_LOOP {{ ")
            first.add(value)
            first.add(" }")
        replaced = []
        for number, same in enumerate(indices.values()):
            places.add(f"msl_to[{number}] = ")
            places.add(self._rewriter.expression(same[0]))
            places.add("; ")
            for index in same:
                place = Mapped(f"msl_t.template place<{number}>(")
                place.add(self._rewriter.expression(index))
                place.add(")")
                replaced.append((index.start_byte, index.end_byte, place))
        used = {
            v
            for v in self._body.variables.used_in(body)
            if not (node.start_byte <= v.identifier.start_byte < node.end_byte)
        }
        parameters = f"const auto msl_t, const auto {variable.name}"
        of_turn = self._work_items.emit_lambda(
            [body], used, [], self._rewriter.statement(body, replaced), turn, parameters
        )
        lane = max(lane, of_turn, key=LANE_TYPES.index)
        out.add(
            f"{_S}::stride<{self._work_items.independent([body], self._is_promised(node))}, {len(indices)}, {_S}::{lane}>"
            f"(msl_g, {self._masks.active}, "
        )
        out.add(first)
        out.add(", ")
        out.add(self._rewriter.expression(bound))
        out.add(f", {step}, [&](const auto {variable.name}, {names.ABI}::u64* msl_to) {{ ")
        out.add(places)
        out.add("}, ")
        out.add(turn)
        out.add(");\n")

    def _emit_divergent(self, node, out: Mapped) -> None:
        """Emits a loop that threads leave one by one."""
        initializer, update = (node.child_by_field_name(f) for f in ("initializer", "update"))
        body = node.child_by_field_name("body")
        condition = condition_of(node)
        if condition is not None and condition.type == "parenthesized_expression":
            condition = condition.named_children[0]
        out.add("{ ")
        if initializer is not None and initializer.type == "declaration":
            self._emit_block([initializer], out)
        elif initializer is not None:
            self._emit_step(initializer, out)
        loop = self._new("loop")
        out.add(f"{self._masks.type} {loop}(msl_g, {self._masks.active}); for (;;) {{\n")
        outermost = self._masks.depth
        with self._masks.under(loop):
            if node.type != "do_statement" and condition is not None:
                self._emit_condition(condition, loop, out)
            iteration = self._new("turn")
            out.add(f"{{ {self._masks.type} {iteration}(msl_g, {loop});\n")
            with (
                self._masks.varying_target(outermost, outermost + 1),
                self._masks.under(iteration),
            ):
                self._emit_block(statements_of(body), out)
            out.add("}\n")
            if self._body.cuts.leaves_at_all(body):
                out.add(f"if (!{loop}.any()) break;\n")
            if update is not None:
                self._emit_step(update, out)
            if node.type == "do_statement" and condition is not None:
                self._emit_condition(condition, loop, out)
        out.add("} }\n")

    def _emit_condition(self, condition, loop: str, out: Mapped) -> None:
        """Emits the check of a loop's condition, by which threads leave the loop's mask."""
        out.add("{ ")
        replaced = self._lowering.lower(condition, out)
        rest = self._new("no")
        out.add(f"{self._masks.type} {rest}(msl_g); ")
        self._predication.split_into(condition, replaced, loop, rest, out)
        out.add("} ")
        out.add(f"if (!{loop}.any()) break;\n")

    def _emit_step(self, node, out: Mapped) -> None:
        """Emits the update of a loop, or its initializer if that is an expression."""
        if node.type == "comma_expression":
            for child in node.named_children:
                self._emit_step(child, out)
        elif self._statements.is_uniform_definition(node):
            out.add(self._rewriter.expression(node))
            out.add(";\n")
        else:
            replaced = self._lowering.lower(node, out)
            body = self._rewriter.expression(node, replaced)
            body.add(";")
            self._work_items.each(
                [node], self._body.variables.used_in(node), [t for _, _, t in replaced], body, out
            )

    def _is_promised(self, loop) -> bool:
        """Returns true if `#pragma clang loop vectorize(assume_safety)` precedes a loop."""
        return (
            _PROMISE.search(self._source.text[loop.prev_sibling.end_byte : loop.start_byte])
            is not None
        )

    def _computes_more(self, node) -> bool:
        """Returns true if an expression must not be computed more than once."""
        return any(
            n.type in ("call_expression", "assignment_expression", "update_expression")
            for n in walk(node)
        )
