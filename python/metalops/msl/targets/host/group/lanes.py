"""Work-item loops, in which each thread of a group runs statements by itself, and the variables that are privatised."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ....analysis.program import (
    Function,
    Kernel,
)
from ....analysis.scopes import Declaration
from ....analysis.uniformity import USES_MATRICES, Kind, NotCut, Variable
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import walk
from .context import FunctionContext
from .parameters import Parameters
from .rewriter import Rewriter

_S = names.SUPPORT


# The types of `msl_t` in a loop's body (group.h): each offers more than the one before.
LANE_TYPES = ("Numbered", "InRow", "Lane")


def lane_type(text: str) -> str:
    if re.search(r"\bmsl_t\.[yz]\b", text):
        return "Lane"
    return "InRow" if re.search(r"\bmsl_t\.x\b", text) else "Numbered"


class Lanes:
    """A function, for given kinds of its parameters, whose group form is written. uses: the forms that it calls."""

    def __init__(
        self,
        groups,
        function: Function,
        kinds,
        again,
        key,
        kernel: Kernel | None = None,
    ):
        """kinds: of the parameters. again: for each parameter that loops rematerialise its value, for others None."""
        self.groups = groups
        self.context = context = FunctionContext.of(groups, function, kinds, again, kernel)
        self.source = context.source
        self.call_graph = context.call_graph
        self.effects = context.effects
        self.sync = context.sync
        self.function = function
        self.key = key
        self.kernel = kernel
        self.kinds = context.kinds
        self.again = context.again
        self.has_object = context.has_object
        self.body = context.body
        self.rewriter = Rewriter(context)
        self.parameters = Parameters(context, self.rewriter, groups.builtins)
        self.uses: list[Lanes] = []
        self.text = Mapped()

    # ---- work-item loops -------------------------------------------------------------------------

    def _flush(self, run: list, out: Mapped) -> None:
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
            for used in self.body.used_in(variable.declaration):
                if used in declared and used not in crossing:
                    crossing.add(used)
                    waiting.append(used)
        for variable in declared:
            if variable in crossing:
                self._declare_lanes(variable, out)
        body = Mapped()
        for node, replaced in items:
            mine = [v for v in self._variables_in(node) if v in crossing]
            if mine:
                self._initialise(node, mine, replaced, body)
            else:
                body.add(self.rewriter.statement(node, replaced))
        used = set().union(*(self.body.used_in(node) for node, _ in items))
        used = {
            v
            for v in used
            if not any(n.start_byte <= v.identifier.start_byte < n.end_byte for n, _ in items)
        }
        temporaries = [text for _, replaced in items for _, _, text in replaced]
        self._each([node for node, _ in items], used, temporaries, body, out, crossing)

    def _variables_in(self, node) -> list[Variable]:
        return self.body.declared_by(node) if node.type == "declaration" else []

    def _each(
        self, nodes, used, temporaries, body: Mapped, out: Mapped, declared: Iterable[Variable] = ()
    ) -> None:
        """Writes a work-item loop. declared: privatised variables that the body itself declares."""
        taken = {v for v in used if self.body.is_taken_in(v, nodes)}
        # Vector lanes would share the arrays.
        independent = "false" if taken else self._independent(nodes)
        out.add(f"{_S}::each<{independent}>(msl_g, {self.masks.active}, ")
        self._lambda(nodes, used, temporaries, body, out, declared=declared, taken=taken)
        out.add(");\n")

    def _lambda(
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
        """Writes the body of a work-item loop as a lambda; for the type of `msl_t` see lane_type(). It captures copies
        of the values it needs, so that compilers see that they do not change while it runs. parameters: its parameters
        if there are more than `msl_t`. taken: arrays of which it has a local copy until it ends."""
        variables = [
            v
            for v in self._in_order(used)
            if not any(n.start_byte <= v.identifier.start_byte < n.end_byte for n in nodes)
        ]
        declared = sorted(declared, key=lambda v: v.identifier.start_byte)
        values = [t for t in dict.fromkeys(temporaries) if t.startswith("msl_value_")]
        captures = [
            "&",
            *(["msl_objects"] if self.has_object else []),
            *(f"msl_at_{v.name} = {_S}::at(msl_lanes_{v.name})" for v in declared),
        ]
        for variable in variables:
            name = variable.name
            if variable.kind is Kind.THREAD and not variable.is_of_group:
                captures.append(f"msl_at_{name} = {_S}::at(msl_lanes_{name})")
            elif self._is_copied(variable, nodes):
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

    def _is_copied(self, variable: Variable, nodes) -> bool:
        """Returns true if a uniform value is copied for a loop; false for variables that must keep their address."""
        if variable.kind is not Kind.GROUP or variable.is_of_group or variable.is_array:
            return False
        if variable in self.body.held:
            return False
        if variable.is_reference and not (
            variable.is_parameter and self.parameters.is_loaded_once(variable)
        ):
            return False
        if self._may_be_constant(variable):
            return False
        address = re.compile(rf"(?<!&)&\s*{variable.name}\b")
        return not any(address.search(self.source.masked_text(node)) for node in nodes)

    def _may_be_constant(self, variable: Variable) -> bool:
        """Returns true if a variable may occur in a constant expression, such as the size of an array."""
        qualifiers = {
            self.source.node_text(c)
            for c in variable.declaration.children
            if c.type == "type_qualifier"
        }
        if variable.is_parameter or variable.value is None or "const" not in qualifiers:
            return False
        return not any(
            n.type in ("call_expression", "subscript_expression", "pointer_expression", "this")
            or (n.type == "field_expression" and n.children[1].type == "->")
            for n in walk(variable.value)
        ) and all(map(self._may_be_constant, self.body.used_in(variable.value)))

    def _independent(self, nodes, is_promised: bool = False) -> str:
        """Returns "true" if the iterations of a work-item loop may be declared independent, else "false". is_promised:
        true if the source promises that the order in which each thread accesses shared memory does not matter."""

        def is_harmless(declaration: Declaration | None) -> bool:
            """Returns true for privatised variables, and for uniform ones that are not written here."""
            if declaration is None:
                return True  # a constant of the program, or a member of a privatised object
            variable = self.body.of[declaration.identifier.start_byte]
            if variable.is_of_group:
                return True
            if any(n.start_byte <= variable.identifier.start_byte < n.end_byte for n in nodes):
                return False
            if variable.kind is not Kind.THREAD:
                return not declaration.is_pointer
            return not declaration.is_pointer or not any(
                n.start_byte <= definition.start_byte < n.end_byte
                for n in nodes
                for definition in declaration.definitions
            )

        calls = self.call_graph
        depends = (
            calls.nodes_compute_addresses(nodes, is_harmless)
            or self.body.may_meet_itself(nodes)
            or (not is_promised and calls.nodes_depend_on_order(nodes))
        )
        return "false" if depends else "true"

    def _prologue(self, nodes, variables, values, taken, out: Mapped) -> None:
        """Declares the variables that a thread uses, under their names."""
        if self.has_object:
            out.add("auto& msl_self = msl_objects[msl_t.slot]; ")
        if any(USES_MATRICES.search(self.source.masked_text(node)) for node in nodes):
            out.add("msl_g.scratch->lane = msl_t.index & 31; ")
        for name in values:
            out.add(f"auto& {name} = msl_at_{name}[msl_t.slot]; ")
        for variable in variables:
            name = variable.name
            if variable.kind is Kind.THREAD and not variable.is_of_group:
                if variable in taken:
                    out.add(f"{_S}::Taken msl_taken_{name}(msl_at_{name}[msl_t.slot]); ")
                    out.add(f"auto& {name} = msl_taken_{name}.array; ")
                    continue
                star = "*" if variable.is_reference and not variable.is_parameter else ""
                out.add(f"{self._reference(variable)} = {star}msl_at_{name}[msl_t.slot]; ")
            elif self._is_copied(variable, nodes):
                # Under a name of its own: compilers differ in decltype of a captured object.
                out.add(f"const auto& {name} = msl_copy_{name}; ")
            elif variable.kind is Kind.AGAIN:
                if variable.is_parameter:
                    out.add(
                        f"{self.parameters.rematerialised(self.parameters.position_of(variable))} "
                    )
                else:
                    out.add(self.rewriter.statement(variable.declaration))
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
                waiting.extend(self.body.captured_by(variable.declaration))
        return sorted(found, key=lambda v: v.identifier.start_byte)

    # ---- privatised variables --------------------------------------------------------------------

    def _copy_parameter(self, name: str, given: str, value: str, out: Mapped) -> None:
        """Copies a parameter to every thread. given: the capture from which `value` is loaded in the loop, so that
        stores do not force reloads."""
        out.add(
            f"{_S}::Lanes<{_S}::decayed_t<decltype({name})>> msl_lanes_{name}(msl_g); "
            f"{_S}::each<true>(msl_g, msl_mask, [&, msl_to = {_S}::at(msl_lanes_{name}), {given}]"
            f"(const {_S}::Numbered msl_t) MSL_LANE_LOOP {{ {_S}::put(msl_to[msl_t.slot], "
            f"static_cast<{_S}::decayed_t<decltype({name})>>({value})); }});\n"
        )

    def _keep(self, variable: Variable, out: Mapped, type_text: str) -> None:
        lanes = "spread" if self.body.is_spread(variable) else "variable"
        out.add(f"{_S}::{lanes}<{type_text}> msl_lanes_{variable.name}(msl_g); ")

    def _reference(self, variable: Variable) -> str:
        """Returns the declaration, without its value, of one thread's copy of a variable."""
        return f"{'const auto' if self.body.is_spread(variable) else 'auto&'} {variable.name}"

    def _declare_lanes(self, variable: Variable, out: Mapped) -> None:
        declaration, identifier = variable.declaration, variable.identifier
        name = variable.name
        first = declaration.child_by_field_name("declarator")
        if variable.declarator.type == "structured_binding_declarator":
            raise NotCut("a structured binding that is used after threads have met")
        head = self.source.previous_code(declaration.start_byte) + 1
        base = self.rewriter.unrenamed(head, first.start_byte)
        if variable.is_reference:
            value = self.rewriter.expression(variable.value)
            out.add(f"{_S}::Lanes<decltype(&(")
            out.add(value)
            out.add(
                f"))> msl_lanes_{name}(msl_g); auto& {name} = *msl_lanes_{name}[0]; (void){name};\n"
            )
            return
        if variable.declared.lambda_expression is not None:
            raise NotCut(f"the lambda '{name}', which is called after threads have met")
        if re.search(r"\bauto\b", base):
            out.add(f"typedef {_S}::decayed_t<decltype(")
            out.add(self.rewriter.expression(variable.value))
            out.add(f")> msl_type_{name}; ")
        else:
            declarator = variable.declarator
            before = after = ""
            if declarator.type != "function_declarator":
                before = self.rewriter.unrenamed(declarator.start_byte, identifier.start_byte)
                after = self.rewriter.unrenamed(identifier.end_byte, declarator.end_byte)
            out.add(f"typedef {base} {before}msl_type_{name}{after}; ")
        self._keep(variable, out, f"msl_type_{name}")
        out.add(f"{self._reference(variable)} = msl_lanes_{name}[0]; (void){name};\n")

    def _initialise(self, node, variables, replaced, body: Mapped) -> None:
        """Writes a declaration whose variables are privatised, run by each thread."""
        plain = [v for v in variables if not v.is_reference]
        references = [v for v in variables if v.is_reference]
        if references and len(self.body.declared_by(node)) > 1:
            raise NotCut("a declaration of references and other variables")
        for variable in references:
            body.add(f"msl_at_{variable.name}[msl_t.slot] = &(")
            body.add(self.rewriter.expression(variable.value, replaced))
            body.add(f"); auto& {variable.name} = *msl_at_{variable.name}[msl_t.slot]; ")
        if not plain:
            return
        if any(v.value is not None for v in variables):
            renamed = list(replaced)
            for variable in plain:
                places = [variable.identifier.start_byte, *variable.uses]
                renamed += [
                    (at, at + len(variable.name), f"msl_init_{variable.name}")
                    for at in places
                    if node.start_byte <= at < node.end_byte
                ]
            body.add(self.rewriter.statement(node, renamed))
        else:
            others = [v for v in self.body.declared_by(node) if v not in variables]
            if others:
                body.add(self.rewriter.statement(node))
        for variable in plain:
            name = variable.name
            if any(v.value is not None for v in variables):
                body.add(f" {_S}::copy(msl_at_{name}[msl_t.slot], msl_init_{name});")
            body.add(f" {self._reference(variable)} = msl_at_{name}[msl_t.slot]; (void){name};")
            if not any(v.value is not None for v in variables):
                body.add(f" {_S}::begin({name});")
