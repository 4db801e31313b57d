"""Statements that are cut: which of them all threads run in one loop, and how threads diverge and leave."""

from __future__ import annotations

import re

from ....analysis.uniformity import Kind, NotCut, Variable, condition_of
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import (
    LOOPS,
    alternative_of,
    case_statements,
    is_constexpr_if,
    statements_of,
    walk,
    without_parentheses,
)
from .calls import Calls
from .indices import growing_indices
from .lanes import LANE_TYPES, lane_type
from .parameters import is_scalar_builtin

_S = names.SUPPORT
_INTEGERS = re.compile(
    r"(?:const\s+)?(?:auto|unsigned|(?:unsigned\s+)?(?:int|short|long)|u(?:int|short|long)|size_t"
    r"|u?int(?:16|32|64)_t)$"
)
_PROMISE = re.compile(
    r"(?m)^[ \t]*#[ \t]*pragma[ \t]+clang[ \t]+loop[ \t]+vectorize[ \t]*\([ \t]*assume_safety[ \t]*\)"
)
_NUMBER = re.compile(r"\d+[uU]?")
# Indices that select threads by comparison (group.h).
_CHOICES = {
    "thread_index_in_simdgroup": "of_every_simdgroup",
    "simdgroup_index_in_threadgroup": "of_simdgroup",
    "thread_index_in_threadgroup": "of_index",
    "thread_position_in_threadgroup": "of_x",
}
_STATEMENTS_OF_TYPES = {
    "alias_declaration",
    "type_definition",
    "using_declaration",
    "static_assert_declaration",
    "struct_specifier",
    "class_specifier",
    "enum_specifier",
    "namespace_alias_definition",
}


class Flow(Calls):
    # ---- statements ------------------------------------------------------------------------------

    def _run(self, body, returns: list[tuple], out: Mapped) -> None:
        """Writes the body of a function or of a closure. returns: the conditions around its return statements."""
        if any(any(map(self.body.parts, conditions)) for conditions in returns):
            out.add(f"{_S}::Mask msl_m0(msl_g, msl_mask);\n")
            with self.masks.under("msl_m0"):
                self._block(statements_of(body), out)
        else:
            self._block(statements_of(body), out)
        self.masks.end(out)

    def _block(self, statements: list, out: Mapped) -> None:
        """Writes the statements of a block that is cut."""
        run: list[tuple[object, list]] = []
        for position, node in enumerate(statements):
            closure = self._closure_declared(node)
            if closure is not None:
                self._flush(run, out)
                self._closure(closure.value, closure.name, out)
            elif self._is_group_statement(node):
                if self._reads_memory(node) or self._changes(node) or self._hides(node, run):
                    self._flush(run, out)
                self._group_statement(node, out)
            elif self._runs_whole(node):
                run.append((node, []))
            else:
                self._flush(run, out)
                more = self._cut(node, out)
                if more is not None:
                    run.append(more)
                if self.masks.depth and self.body.leaves(node):
                    if position + 1 < len(statements):
                        self._flush(run, out)
                        out.add(f"if ({self.masks.active}.any()) {{\n")
                        self._block(statements[position + 1 :], out)
                        out.add("}\n")
                    break
                if node.type in ("return_statement", "break_statement", "continue_statement"):
                    break
        self._flush(run, out)

    def _is_group_statement(self, node) -> bool:
        if node.type in _STATEMENTS_OF_TYPES:
            return True
        if node.type == "declaration":
            variables = self.body.declared_by(node)
            return not variables or all(v.kind is not Kind.THREAD for v in variables)
        if node.type == "expression_statement" and node.named_children:
            return self._is_group_definition(node.named_children[0])
        return False

    def _is_group_definition(self, node) -> bool:
        if node.type == "comma_expression":
            return all(map(self._is_group_definition, node.named_children))
        if node.type not in ("assignment_expression", "update_expression"):
            return False
        target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        while target.type == "field_expression":
            target = target.child_by_field_name("argument")
        variable = self.body.of.get(target.start_byte) if target.type == "identifier" else None
        return variable is not None and variable.kind is Kind.GROUP and not variable.is_of_group

    def _changes(self, node) -> bool:
        return node.type == "expression_statement"

    def _reads_memory(self, node) -> bool:
        return any(
            n.type in ("subscript_expression", "pointer_expression", "call_expression")
            or (n.type == "field_expression" and n.children[1].type == "->")
            for n in walk(node)
        ) or any(
            v.is_reference or "threadgroup" in v.declared.address_spaces
            for v in self.body.used_in(node)
        )

    def _hides(self, node, run) -> bool:
        hidden = {v.name for v in self.body.declared_by(node)}
        return any(v.name in hidden for item, _ in run for v in self.body.used_in(item))

    def _group_statement(self, node, out: Mapped) -> None:
        if self.body.meets(node):
            raise NotCut("threads meet in what is the same for all")
        out.add(self.rewriter.statement(node))
        out.add("\n")

    def _runs_whole(self, node) -> bool:
        """Returns true if each thread runs the statement as a whole."""
        if node.type in ("break_statement", "continue_statement", "return_statement"):
            return False
        if not self.body.is_cut(node):
            return True
        if self.body.must_be_cut(node):
            return False
        if node.type == "if_statement":
            if is_constexpr_if(node) or not self.body.parts(node.child_by_field_name("condition")):
                return False
            return not (self.body.is_masked(node) and self._is_cheap_condition(node))
        if node.type == "for_statement":
            return not (self._is_group_loop(node) or self._is_strided(node))
        return False

    def _is_cheap_condition(self, node) -> bool:
        return all(
            v.kind is not Kind.THREAD
            for v in self.body.used_in(node.child_by_field_name("condition"))
        )

    def _cut(self, node, out: Mapped):
        """Writes a statement that is cut; returns the rest of it that is to be run thread by thread, if any."""
        kind = node.type
        if kind == "compound_statement":
            out.add("{\n")
            self._block(statements_of(node), out)
            out.add("}\n")
        elif kind == "expression_statement":
            return self._expression_statement(node, out)
        elif kind == "declaration":
            return node, self._lower(node, out)
        elif kind == "if_statement":
            self._if(node, out)
        elif kind in LOOPS:
            self._loop(node, out)
        elif kind == "switch_statement":
            self._switch(node, out)
        elif kind == "return_statement":
            self._return(node, out)
        elif kind in ("break_statement", "continue_statement"):
            self.masks.leave_target(kind, out)
        else:
            raise NotCut(f"threads meet in a {kind.replace('_', ' ')}")
        return None

    def _expression_statement(self, node, out: Mapped):
        expression = node.named_children[0]
        if expression.type == "comma_expression":
            raise NotCut("threads meet beside a comma")
        replaced = self._lower(expression, out)
        inner = without_parentheses(expression)
        if inner.type == "cast_expression":  # (void)f(x)
            inner = inner.child_by_field_name("value")
        if len(replaced) == 1 and (inner.start_byte, inner.end_byte) == replaced[0][:2]:
            return None
        return node, replaced

    # ---- if, loops, switch -----------------------------------------------------------------------

    def _statements(self, node, out: Mapped) -> None:
        out.add("{\n")
        self._block(statements_of(node), out)
        out.add("}\n")

    def _if(self, node, out: Mapped) -> None:
        clause = node.child_by_field_name("condition")
        consequence, alternative = node.child_by_field_name("consequence"), alternative_of(node)
        if is_constexpr_if(node) or not self.body.parts(clause):
            if self.body.meets(clause):
                raise NotCut("threads meet in what is the same for all")
            out.add("if constexpr " if is_constexpr_if(node) else "if ")
            out.add(self.rewriter.expression(clause))
            out.add(" ")
            self._statements(consequence, out)
            if alternative is not None:
                out.add("else ")
                self._statements(alternative, out)
            return
        condition = condition_of(node)
        out.add("{ ")
        chosen = self._threads_by_number(condition)
        if chosen is not None and alternative is None and not self.body.leaves(node):
            yes = self.context.new("yes")
            out.add(f"const auto {yes} = {chosen};\n")
            with self.masks.diverged(condition):
                self._branch(yes, lambda out: self._block(statements_of(consequence), out), out)
            out.add("}\n")
            return
        replaced = self._lower(condition, out)
        yes, no = self._part(condition, replaced, out)
        with self.masks.diverged(condition):
            self._branch(yes, lambda out: self._block(statements_of(consequence), out), out)
            if alternative is not None:
                self._branch(no, lambda out: self._block(statements_of(alternative), out), out)
        out.add("}\n")

    def _threads_by_number(self, condition) -> str | None:
        """Returns the mask for `if (lane == 0)` and the like, which need not be computed thread by thread, or None."""
        if condition.type != "binary_expression":
            return None
        left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
        operator = self.source.node_text(condition.child_by_field_name("operator"))
        number = self.source.node_text(right)
        if left.type != "identifier" or operator != "==" or not _NUMBER.fullmatch(number):
            return None
        variable = self.body.of.get(left.start_byte)
        if variable is None or variable.kind is not Kind.AGAIN or not variable.is_parameter:
            return None
        position = self.parameters.position_of(variable)
        choice = _CHOICES.get(self.parameters.attribute(position))
        if choice is None or not is_scalar_builtin(self.parameters.type_of(position)):
            return None
        return f"{_S}::{choice}(msl_g, {self.masks.active}, {number})"

    def _is_group_loop(self, node) -> bool:
        """Returns true if all threads run a loop equally often."""
        if node.type == "for_range_loop":
            return False
        condition = node.child_by_field_name("condition")
        if condition is not None and (self.body.meets(condition) or self.body.parts(condition)):
            return False
        initializer = node.child_by_field_name("initializer")
        if initializer is not None:
            if initializer.type != "declaration":
                return False
            if any(v.kind is Kind.THREAD for v in self.body.declared_by(initializer)):
                return False
        update = node.child_by_field_name("update")
        if update is not None and not self._is_group_definition(update):
            return False
        return not self.body.parts(node)

    def _is_strided(self, node) -> bool:
        """Returns true for `for (T i = start; i < bound; i += step)` with a uniform bound and step."""
        initializer = node.child_by_field_name("initializer")
        condition, update = (
            node.child_by_field_name("condition"),
            node.child_by_field_name("update"),
        )
        if initializer is None or condition is None or update is None:
            return False
        variables = self.body.declared_by(initializer)
        if len(variables) != 1 or variables[0].value is None or len(variables[0].definitions) > 3:
            return False
        variable = variables[0]
        type_text = self.source.masked_text(initializer.child_by_field_name("type"))
        if not _INTEGERS.match(type_text.strip()) or variable.declarator.type != "identifier":
            return False
        left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
        operator = self.source.node_text(condition.child_by_field_name("operator"))
        if self.body.of.get(left.start_byte) is not variable or left.type != "identifier":
            return False
        if operator != "<" or not self.body.is_same(right):
            return False
        step = self._step(update, variable)
        if step is None:
            return False
        body = node.child_by_field_name("body")
        return not any(
            body.start_byte <= value.start_byte < body.end_byte
            for value, _ in variable.definitions
            if value is not None
        ) and all(value is not None for value, _ in variable.definitions)

    def _step(self, update, variable: Variable) -> str | None:
        target = update.child_by_field_name("left") or update.child_by_field_name("argument")
        if target is None or self.body.of.get(target.start_byte) is not variable:
            return None
        text = self.source.node_text(update)
        if update.type == "update_expression":
            return "1" if "++" in text else None
        if update.type != "assignment_expression":
            return None
        operator = self.source.node_text(update.child_by_field_name("operator"))
        right = update.child_by_field_name("right")
        if operator != "+=" or not self.body.is_same(right):
            return None
        return self.rewriter.unrenamed(right.start_byte, right.end_byte)

    def _loop(self, node, out: Mapped) -> None:
        if node.type == "for_range_loop":
            raise NotCut("threads meet in a range-based for")
        if self._is_group_loop(node):
            self._group_loop(node, out)
        elif not self.body.must_be_cut(node) and self._is_strided(node):
            self._strided_loop(node, out)
        else:
            self._parting_loop(node, out)

    def _group_loop(self, node, out: Mapped) -> None:
        initializer, condition, update = (
            node.child_by_field_name(f) for f in ("initializer", "condition", "update")
        )
        if node.type == "for_statement":
            out.add("for (")
            out.add(self.rewriter.statement(initializer) if initializer is not None else ";")
            out.add(" ")
            if condition is not None:
                out.add(self.rewriter.expression(condition))
            out.add("; ")
            if update is not None:
                out.add(self.rewriter.expression(update))
            out.add(") ")
        elif node.type == "while_statement":
            out.add("while ")
            out.add(self.rewriter.expression(condition))
            out.add(" ")
        else:
            out.add("do ")
        out.add("{\n")
        body = node.child_by_field_name("body")
        with self.masks.uniform_target(is_loop=True):
            self._block(statements_of(body), out)
        if self.masks.depth and any(n.type == "return_statement" for n in walk(body)):
            out.add(f"if (!{self.masks.active}.any()) break;\n")
        out.add("}\n")
        if node.type == "do_statement":
            out.add("while ")
            out.add(self.rewriter.expression(condition))
            out.add(";\n")

    def _strided_loop(self, node, out: Mapped) -> None:
        initializer = node.child_by_field_name("initializer")
        body = node.child_by_field_name("body")
        variable = self.body.declared_by(initializer)[0]
        type_text = self.rewriter.unrenamed(
            initializer.child_by_field_name("type").start_byte, variable.declarator.start_byte
        ).strip()
        bound = node.child_by_field_name("condition").child_by_field_name("right")
        step = self._step(node.child_by_field_name("update"), variable)
        start = variable.value
        kept = self._value(start, [], out) if self._computes_more(start) else None
        indices: dict[str, list] = {}  # equal indices together, by their text
        for index in growing_indices(self.body, body, variable):
            indices.setdefault(self.source.node_text(index), []).append(index)
        first, places, turn = Mapped(), Mapped(), Mapped()
        value = Mapped("return ")
        if type_text != "auto":
            value.add(f"static_cast<{type_text}>")
        value.add("(")
        value.add(self.rewriter.expression(start) if kept is None else "msl_from[msl_t.slot]")
        value.add(");")
        if kept is None:
            lane = self._lambda([start], self.body.used_in(start), [], value, first)
        else:
            lane = lane_type(value.text)
            first.add(f"[msl_from = {_S}::at({kept})](const {_S}::{lane} msl_t) MSL_LANE_LOOP {{ ")
            first.add(value)
            first.add(" }")
        replaced = []
        for number, same in enumerate(indices.values()):
            places.add(f"msl_to[{number}] = ")
            places.add(self.rewriter.expression(same[0]))
            places.add("; ")
            for index in same:
                place = Mapped(f"msl_t.template place<{number}>(")
                place.add(self.rewriter.expression(index))
                place.add(")")
                replaced.append((index.start_byte, index.end_byte, place))
        used = {
            v
            for v in self.body.used_in(body)
            if not (node.start_byte <= v.identifier.start_byte < node.end_byte)
        }
        parameters = f"const auto msl_t, const auto {variable.name}"
        of_turn = self._lambda(
            [body], used, [], self.rewriter.statement(body, replaced), turn, parameters
        )
        lane = max(lane, of_turn, key=LANE_TYPES.index)
        out.add(
            f"{_S}::stride<{self._independent([body], self._is_promised(node))}, {len(indices)}, {_S}::{lane}>"
            f"(msl_g, {self.masks.active}, "
        )
        out.add(first)
        out.add(", ")
        out.add(self.rewriter.expression(bound))
        out.add(f", {step}, [&](const auto {variable.name}, {names.ABI}::u64* msl_to) {{ ")
        out.add(places)
        out.add("}, ")
        out.add(turn)
        out.add(");\n")

    def _is_promised(self, loop) -> bool:
        """Returns true if `#pragma clang loop vectorize(assume_safety)` precedes a loop."""
        return (
            _PROMISE.search(self.source.text[loop.prev_sibling.end_byte : loop.start_byte])
            is not None
        )

    def _computes_more(self, node) -> bool:
        """Returns true if an expression must not be computed more than once."""
        return any(
            n.type in ("call_expression", "assignment_expression", "update_expression")
            for n in walk(node)
        )

    def _parting_loop(self, node, out: Mapped) -> None:
        """Writes a loop that threads leave one by one."""
        initializer, update = (node.child_by_field_name(f) for f in ("initializer", "update"))
        body = node.child_by_field_name("body")
        condition = condition_of(node)
        if condition is not None and condition.type == "parenthesized_expression":
            condition = condition.named_children[0]
        out.add("{ ")
        if initializer is not None:
            self._block([initializer], out)
        loop = self.context.new("loop")
        out.add(f"{_S}::Mask {loop}(msl_g, {self.masks.active}); for (;;) {{\n")
        outermost = self.masks.depth
        with self.masks.under(loop):
            if node.type != "do_statement" and condition is not None:
                self._check_condition(condition, loop, out)
            iteration = self.context.new("turn")
            out.add(f"{{ {_S}::Mask {iteration}(msl_g, {loop});\n")
            with (
                self.masks.varying_target(outermost, outermost + 1),
                self.masks.under(iteration),
            ):
                self._block(statements_of(body), out)
            out.add("}\n")
            if self.body.leaves_at_all(body):
                out.add(f"if (!{loop}.any()) break;\n")
            if update is not None:
                self._update(update, out)
            if node.type == "do_statement" and condition is not None:
                self._check_condition(condition, loop, out)
        out.add("} }\n")

    def _check_condition(self, condition, loop: str, out: Mapped) -> None:
        """Emits the check of a loop's condition, by which threads leave the loop's mask."""
        out.add("{ ")
        replaced = self._lower(condition, out)
        rest = self.context.new("no")
        out.add(f"{_S}::Mask {rest}(msl_g); ")
        self._part_into(condition, replaced, loop, rest, out)
        out.add("} ")
        out.add(f"if (!{loop}.any()) break;\n")

    def _update(self, node, out: Mapped) -> None:
        if node.type == "comma_expression":
            for child in node.named_children:
                self._update(child, out)
        elif self._is_group_definition(node):
            out.add(self.rewriter.expression(node))
            out.add(";\n")
        else:
            replaced = self._lower(node, out)
            body = self.rewriter.expression(node, replaced)
            body.add(";")
            self._each([node], self.body.used_in(node), [t for _, _, t in replaced], body, out)

    def _switch(self, node, out: Mapped) -> None:
        cases = [c for c in node.child_by_field_name("body").named_children if c.type != "comment"]
        if any(c.type != "case_statement" for c in cases):
            raise NotCut("a switch with statements before its first case")
        clause = node.child_by_field_name("condition")
        if not self.body.parts(clause) and not self.body.parts(node):
            out.add("switch ")
            out.add(self.rewriter.expression(clause))
            out.add(" {\n")
            with self.masks.uniform_target(is_loop=False):
                for case in cases:
                    value = case.child_by_field_name("value")
                    out.add("default: {\n" if value is None else "case ")
                    if value is not None:
                        out.add(self.rewriter.expression(value))
                        out.add(": {\n")
                    self._block(case_statements(case), out)
                    out.add("}\n")
            out.add("}\n")
            return
        condition = condition_of(node)
        replaced = self._lower(condition, out)
        out.add("{ ")
        value = self._value(condition, replaced, out)
        active, rest = self.context.new("active"), self.context.new("rest")
        out.add(
            f"{_S}::Mask {active}(msl_g, {self.masks.active}), {rest}(msl_g, {self.masks.active}); {active}.clear();\n"
        )
        labels = [c.child_by_field_name("value") for c in cases]
        for label in labels:
            if label is not None:
                out.add(f"{_S}::remove_where(msl_g, {rest}, {_S}::at({value}), ")
                out.add(self.rewriter.expression(label))
                out.add(");\n")
        with self.masks.varying_target(self.masks.depth), self.masks.under(active):
            for case, label in zip(cases, labels, strict=True):
                if label is None:
                    out.add(f"{active}.add({rest});\n")
                else:
                    around = self.masks.enclosing
                    out.add(f"{_S}::add_where(msl_g, {around}, {active}, {_S}::at({value}), ")
                    out.add(self.rewriter.expression(label))
                    out.add(");\n")
                out.add(f"if ({active}.any()) {{\n")
                self._block(case_statements(case), out)
                out.add("}\n")
        out.add("}\n")

    def _return(self, node, out: Mapped) -> None:
        values = [c for c in node.named_children if c.type != "comment"]
        if values and self.masks.result is Kind.THREAD:
            replaced = self._lower(values[0], out)
            is_list = values[0].type == "initializer_list"
            result = f"{_S}::decayed_t<decltype(msl_result[0])>"
            body = Mapped(f"{_S}::put(msl_at_result[msl_t.slot], {result}")
            body.add("" if is_list else "(")
            body.add(self.rewriter.expression(values[0], replaced))
            body.add(");" if is_list else "));")
            self._each(
                [values[0]], self.body.used_in(values[0]), [t for _, _, t in replaced], body, out
            )
        elif values:
            self._lower(values[0], out)
        self.masks.leave(out)
