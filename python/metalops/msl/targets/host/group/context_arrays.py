"""Privatised variables, in context arrays: one copy for each thread."""

from __future__ import annotations

import re

from ....analysis.cuts import NotCut
from ....analysis.variables import Variable
from ....dialect import names
from ....dialect.edits import Mapped
from .context import FunctionContext
from .rewriter import Rewriter

_S = names.SUPPORT


class ContextArrays:
    """Emits the context arrays of privatised variables."""

    def __init__(self, context: FunctionContext, rewriter: Rewriter):
        self._body = context.body
        self._shuffled = context.shuffled
        self._source = context.source
        self._rewriter = rewriter

    def copy_parameter(self, name: str, given: str, value: str, out: Mapped) -> None:
        """Copies a parameter to every thread. given: the capture from which `value` is loaded in the loop, so that
        stores do not force reloads."""
        out.add(
            f"{_S}::Lanes<{_S}::decayed_t<decltype({name})>> msl_lanes_{name}(msl_g); "
            f"{_S}::each<true>(msl_g, msl_mask, [&, msl_to = {_S}::at(msl_lanes_{name}), {given}]"
            f"(const {_S}::Numbered msl_t) MSL_LANE_LOOP {{ {_S}::put(msl_to[msl_t.slot], "
            f"static_cast<{_S}::decayed_t<decltype({name})>>({value})); }});\n"
        )

    def allocate(self, variable: Variable, out: Mapped, type_text: str) -> None:
        lanes = "spread" if self._body.arrays.is_spread(variable) else "variable"
        out.add(f"{_S}::{lanes}<{type_text}> msl_lanes_{variable.name}(msl_g); ")

    def reference(self, variable: Variable) -> str:
        """Returns the declaration, without its value, of one thread's copy of a variable."""
        return (
            f"{'const auto' if self._body.arrays.is_spread(variable) else 'auto&'} {variable.name}"
        )

    def declare(self, variable: Variable, out: Mapped) -> None:
        declaration, identifier = variable.declaration, variable.identifier
        name = variable.name
        first = declaration.child_by_field_name("declarator")
        if variable.declarator.type == "structured_binding_declarator":
            raise NotCut("a structured binding that is used after threads have met")
        head = self._source.previous_code(declaration.start_byte) + 1
        base = self._rewriter.unrenamed(head, first.start_byte)
        if variable.is_reference:
            value = self._rewriter.expression(variable.value)
            out.add(f"{_S}::Lanes<decltype(&(")
            out.add(value)
            out.add(
                f"))> msl_lanes_{name}(msl_g); auto& {name} = *msl_lanes_{name}[0]; (void){name};\n"
            )
            return
        if variable.value is not None and any(
            self._source.find("(lambda_expression) @l", variable.value)
        ):
            raise NotCut(f"the lambda '{name}', which is called after threads have met")
        if re.search(r"\bauto\b", base):
            out.add(f"typedef {_S}::decayed_t<decltype(")
            out.add(self._rewriter.expression(variable.value))
            out.add(f")> msl_type_{name}; ")
        else:
            declarator = variable.declarator
            before = after = ""
            if declarator.type != "function_declarator":
                before = self._rewriter.unrenamed(declarator.start_byte, identifier.start_byte)
                after = self._rewriter.unrenamed(identifier.end_byte, declarator.end_byte)
            out.add(f"typedef {base} {before}msl_type_{name}{after}; ")
        self.allocate(variable, out, f"msl_type_{name}")
        out.add(f"{self.reference(variable)} = msl_lanes_{name}[0]; (void){name};\n")

    def initialise(self, node, variables, replaced, body: Mapped) -> None:
        """Emits a declaration whose variables are privatised, run by each thread."""
        plain = [v for v in variables if not v.is_reference]
        references = [v for v in variables if v.is_reference]
        if references and len(self._body.variables.declared_by(node)) > 1:
            raise NotCut("a declaration of references and other variables")
        for variable in references:
            body.add(f"msl_at_{variable.name}[msl_t.slot] = &(")
            body.add(self._rewriter.expression(variable.value, replaced))
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
            body.add(self._rewriter.statement(node, renamed))
        else:
            others = [v for v in self._body.variables.declared_by(node) if v not in variables]
            if others:
                body.add(self._rewriter.statement(node))
        for variable in plain:
            name = variable.name
            if any(v.value is not None for v in variables):
                body.add(f" {_S}::copy(msl_at_{name}[msl_t.slot], msl_init_{name});")
            body.add(f" {self.reference(variable)} = msl_at_{name}[msl_t.slot]; (void){name};")
            if not any(v.value is not None for v in variables):
                body.add(f" {_S}::begin({name});")
            if variable.value is None and (
                variable.identifier.start_byte in self._shuffled.declared
            ):
                body.add(f" {_S}::clear({name});")
