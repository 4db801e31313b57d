"""Work-item loops, in which each thread of a group runs statements by itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ....analysis.scopes import Declaration
from ....analysis.variables import USES_MATRICES, Kind, Variable
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import walk
from .context import FunctionContext
from .context_arrays import ContextArrays
from .masks import Masks
from .parameters import Parameters
from .rewriter import Rewriter

_S = names.SUPPORT

# The types of `msl_t` in a loop's body (group.h): each offers more than the one before.
LANE_TYPES = ("Numbered", "InRow", "Lane")


def lane_type(text: str) -> str:
    if re.search(r"\bmsl_t\.[yz]\b", text):
        return "Lane"
    return "InRow" if re.search(r"\bmsl_t\.x\b", text) else "Numbered"


class WorkItemLoops:
    """Emits work-item loops: the statements of a region, or an expression, for each thread."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        parameters: Parameters,
        masks: Masks,
        arrays: ContextArrays,
    ):
        self._body = context.body
        self._new = context.new
        self._has_object = context.has_object
        self._call_graph = context.call_graph
        self._source = context.source
        self._rewriter = rewriter
        self._parameters = parameters
        self._masks = masks
        self._arrays = arrays

    def emit_region(self, run: list, out: Mapped) -> None:
        if not run:
            return
        items = list(run)
        run.clear()
        end = max(node.end_byte for node, _ in items)
        declared = [v for node, _ in items for v in self._variables_in(node)]
        crossing = {v for v in declared if v.last_use >= end}
        waiting = list(crossing)
        while waiting:  # the types of privatised variables are needed before the loop
            variable = waiting.pop()
            for used in self._body.variables.used_in(variable.declaration):
                if used in declared and used not in crossing:
                    crossing.add(used)
                    waiting.append(used)
        for variable in declared:
            if variable in crossing:
                self._arrays.declare(variable, out)
        body = Mapped()
        for node, replaced in items:
            mine = [v for v in self._variables_in(node) if v in crossing]
            if mine:
                self._arrays.initialise(node, mine, replaced, body)
            else:
                body.add(self._rewriter.statement(node, replaced))
        used = set().union(*(self._body.variables.used_in(node) for node, _ in items))
        used = {
            v
            for v in used
            if not any(n.start_byte <= v.identifier.start_byte < n.end_byte for n, _ in items)
        }
        temporaries = [text for _, replaced in items for _, _, text in replaced]
        self.each([node for node, _ in items], used, temporaries, body, out, crossing)

    def each(
        self,
        nodes,
        used,
        temporaries,
        body: Mapped,
        out: Mapped,
        declared: Iterable[Variable] = (),
        local: Collection[Variable] = (),
    ) -> None:
        """Emits a work-item loop. declared: privatised variables that the body itself declares. local: those of which it has
        a copy until it ends, other than arrays."""
        taken = {v for v in used if self._body.arrays.is_taken_in(v, nodes)}
        # Vector lanes would share the arrays.
        independent = "false" if taken else self.independent(nodes)
        out.add(f"{_S}::each<{independent}>(msl_g, {self._masks.active}, ")
        self.emit_lambda(
            nodes, used, temporaries, body, out, declared=declared, taken={*taken, *local}
        )
        out.add(");\n")

    def evaluate(self, node, replaced, out: Mapped, as_address: bool = False) -> str:
        """Evaluates an expression for each thread; returns the name of the Lanes with the values."""
        name = self._new("lanes")
        body = Mapped("return ")
        if as_address:
            body.add("&(")
        body.add(self._rewriter.expression(node, replaced))
        body.add(");" if as_address else ";")
        out.add(
            f"const auto {name} = {_S}::evaluate<{self.independent([node])}>(msl_g, {self._masks.active}, "
        )
        self.emit_lambda(
            [node], self._body.variables.used_in(node), [t for _, _, t in replaced], body, out
        )
        out.add(");\n")
        return name

    def emit_lambda(
        self,
        nodes,
        used,
        temporaries,
        body: Mapped,
        out: Mapped,
        parameters: str | None = None,
        declared: Iterable[Variable] = (),
        taken: Collection[Variable] = (),
    ) -> str:
        """Emits the body of a work-item loop as a lambda; for the type of `msl_t` see lane_type(). It captures copies
        of the values it needs, so that compilers see that they do not change while it runs. parameters: its parameters
        if there are more than `msl_t`. taken: variables of which it has a local copy until it ends."""
        variables = [
            v
            for v in self._in_order(used)
            if not any(n.start_byte <= v.identifier.start_byte < n.end_byte for n in nodes)
        ]
        declared = sorted(declared, key=lambda v: v.identifier.start_byte)
        values = [t for t in dict.fromkeys(temporaries) if t.startswith("msl_value_")]
        captures = [
            "&",
            *(["msl_objects"] if self._has_object else []),
            *(f"msl_at_{v.name} = {_S}::at(msl_lanes_{v.name})" for v in declared),
        ]
        for variable in variables:
            name = variable.name
            if variable.kind is Kind.THREAD and not variable.is_of_group:
                captures.append(f"msl_at_{name} = {_S}::at(msl_lanes_{name})")
            elif self._is_copied(variable, nodes) or variable.kind is Kind.SHIFTED:
                captures.append(f"msl_copy_{name} = {name}")
        captures += [f"msl_at_{v} = {_S}::at(msl_lanes_{v})" for v in values]
        inside = Mapped()
        self._prologue(nodes, variables, values, taken, inside)
        inside.add(body)
        lane = lane_type(inside.text)
        parameters = parameters or f"const {_S}::{lane} msl_t"
        out.add(f"[{', '.join(captures)}]({parameters}) MSL_LANE_LOOP {{ ")
        out.add(inside)
        out.add(" }")
        return lane

    def independent(self, nodes, is_promised: bool = False) -> str:
        """Returns "true" if the iterations of a work-item loop may be declared independent, else "false". is_promised:
        true if the source promises that the order in which each thread accesses shared memory does not matter."""

        def is_harmless(declaration: Declaration | None) -> bool:
            """Returns true for privatised variables, and for uniform ones that are not written here."""
            if declaration is None:
                return True  # a constant of the program, or a member of a privatised object
            variable = self._body.variables.of[declaration.identifier.start_byte]
            if variable.is_of_group:
                return True
            if any(n.start_byte <= variable.identifier.start_byte < n.end_byte for n in nodes):
                return False
            if variable.kind not in (Kind.THREAD, Kind.SHIFTED):
                return not declaration.is_pointer
            return not declaration.is_pointer or not any(
                n.start_byte <= definition.start_byte < n.end_byte
                for n in nodes
                for definition in declaration.definitions
            )

        calls = self._call_graph
        depends = (
            calls.nodes_compute_addresses(nodes, is_harmless)
            or self._body.arrays.may_meet_itself(nodes)
            or (not is_promised and calls.nodes_depend_on_order(nodes))
        )
        return "false" if depends else "true"

    def _variables_in(self, node) -> list[Variable]:
        return self._body.variables.declared_by(node) if node.type == "declaration" else []

    def _is_copied(self, variable: Variable, nodes) -> bool:
        """Returns true if a uniform value is copied for a loop; false for variables that must keep their address."""
        if variable.kind is not Kind.GROUP or variable.is_of_group or variable.is_array:
            return False
        if variable in self._body.variables.held:
            return False
        if variable.is_reference and not (
            variable.is_parameter and self._parameters.is_loaded_once(variable)
        ):
            return False
        if self._may_be_constant(variable):
            return False
        address = re.compile(rf"(?<!&)&\s*{variable.name}\b")
        return not any(address.search(self._source.masked_text(node)) for node in nodes)

    def _may_be_constant(self, variable: Variable) -> bool:
        """Returns true if a variable may occur in a constant expression, such as the size of an array."""
        qualifiers = {
            self._source.node_text(c)
            for c in variable.declaration.children
            if c.type == "type_qualifier"
        }
        if variable.is_parameter or variable.value is None or "const" not in qualifiers:
            return False
        return not any(
            n.type in ("call_expression", "subscript_expression", "pointer_expression", "this")
            or (n.type == "field_expression" and n.children[1].type == "->")
            for n in walk(variable.value)
        ) and all(map(self._may_be_constant, self._body.variables.used_in(variable.value)))

    def _prologue(self, nodes, variables, values, taken, out: Mapped) -> None:
        """Declares the variables that a thread uses, under their names."""
        if self._has_object:
            out.add("auto& msl_self = msl_objects[msl_t.slot]; ")
        if any(USES_MATRICES.search(self._source.masked_text(node)) for node in nodes):
            out.add("msl_g.scratch->lane = msl_t.index & 31; ")
        for name in values:
            out.add(f"auto& {name} = msl_at_{name}[msl_t.slot]; ")
        for variable in variables:
            name = variable.name
            if variable.kind is Kind.THREAD and not variable.is_of_group:
                if variable in taken and not variable.is_array:
                    out.add(f"{_S}::Local msl_taken_{name}(msl_at_{name}[msl_t.slot]); ")
                    out.add(f"auto& {name} = msl_taken_{name}.value; ")
                    continue
                if variable in taken:
                    out.add(f"{_S}::Taken msl_taken_{name}(msl_at_{name}[msl_t.slot]); ")
                    out.add(f"auto& {name} = msl_taken_{name}.array; ")
                    continue
                star = "*" if variable.is_reference and not variable.is_parameter else ""
                out.add(f"{self._arrays.reference(variable)} = {star}msl_at_{name}[msl_t.slot]; ")
            elif self._is_copied(variable, nodes):
                # Under a name of its own: compilers differ in decltype of a captured object.
                out.add(f"const auto& {name} = msl_copy_{name}; ")
            elif variable.kind is Kind.SHIFTED:
                out.add(f"const auto {name} = msl_copy_{name} + msl_shift_{name}(msl_t); ")
            elif variable.kind is Kind.AGAIN:
                if variable.is_parameter:
                    out.add(
                        f"{self._parameters.rematerialised(self._parameters.position_of(variable))} "
                    )
                else:
                    out.add(self._rewriter.statement(variable.declaration))
                    out.add(" ")

    def _in_order(self, used) -> list[Variable]:
        """Returns the variables in order, with those that rematerialised values depend on."""
        found = set()
        waiting = list(used)
        while waiting:
            variable = waiting.pop()
            if variable in found:
                continue
            found.add(variable)
            if variable.kind is Kind.AGAIN and not variable.is_parameter:
                waiting.extend(self._body.variables.captured_by(variable.declaration))
        return sorted(found, key=lambda v: v.identifier.start_byte)
