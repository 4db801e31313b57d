"""The signature of a group form: its templates, parameters and result."""

from __future__ import annotations

import re
from collections.abc import Callable

from ....analysis.cuts import NotCut
from ....analysis.program import declared_identifier, takes_reference
from ....analysis.variables import Kind
from ....dialect import names
from ....dialect.edits import Mapped
from .calls import name_in_group
from .context import FunctionContext
from .context_arrays import ContextArrays
from .parameters import Parameters
from .rewriter import Rewriter
from .work_items import lane_type

_S = names.SUPPORT
_NEVER_INTEGER = re.compile(r"\b(?:float|half|bfloat|bool)(?:\d|\b)|[*&]")


class Signature:
    """Emits the head of a group form, and the variables that its parameters become. result: how the result varies; None
    if there is none."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        parameters: Parameters,
        arrays: ContextArrays,
        tags_of: Callable,
    ):
        """tags_of: returns the tags that distinguish a form, for the kinds of its parameters."""
        self._source = context.source
        self._function = context.function
        self._kernel = context.kernel
        self._kinds = context.kinds
        self._triples = context.parameters
        self._has_object = context.has_object
        self._body = context.body
        self._rewriter = rewriter
        self._parameters = parameters
        self._arrays = arrays
        self._again = context.again
        self._tags_of = tags_of
        self.result = self._find_result()

    def emit_head(self, text: Mapped) -> None:
        """Emits all that comes before the statements, except for the parameters' variables."""
        function = self._function
        for line in self._template_headers():
            text.add(line)
        result = "void"
        if self.result is Kind.THREAD:
            result = f"{_S}::Lanes<{_S}::decayed_t<{self._result_type()}>>"
        elif self._kernel is None:
            result = f"{_S}::Nothing"
        tags = "" if self._kernel is not None else self._tags_of(self._kinds, self._again)
        static = "static " if function.in_class else ""
        text.add(
            f" {static}inline {result} {name_in_group(function.name)}({_S}::Kinds<{tags}>, "
            f"const {_S}::Threads& msl_g, const msl_M& msl_mask, const msl_P& msl_pack"
        )
        if self._has_object:
            text.add(", const msl_O msl_objects")
        for (node, start, end), kind in zip(self._triples, self._kinds, strict=True):
            if kind is not Kind.AGAIN or self._kernel is None:
                text.add(", ")
                renamed = ()
                if (name := self._parameters.loaded_once(node, start, end)) is not None:
                    renamed = [(name.start_byte, name.end_byte, self._parameters.name_given(name))]
                text.add(self._rewriter.copy(start, end, renamed))
        if self._kernel is not None and self._kernel.threadgroup_variables:
            text.add(f", {names.ABI}::Group& msl_group")
        text.add(") {\n")
        if self._kernel is None or not self._kernel.threadgroup_variables:
            text.add(f"{names.ABI}::Group& msl_group = *msl_g.group; ")
        if self._has_object:
            text.add("auto& msl_self = msl_objects[0]; (void)msl_self;\n")
        text.add(
            f"const {names.ABI}::Launch* const msl_launch = msl_g.launch; "
            f"const {_S}::Lane msl_t{{}}; (void)msl_group, (void)msl_launch, (void)msl_t;\n"
        )
        if self.result is Kind.THREAD:
            text.add(f"{_S}::Lanes<{_S}::decayed_t<{self._result_type()}>> msl_result(msl_g);\n")
            text.add(f"const auto msl_at_result = {_S}::at(msl_result);\n")

    def _template_headers(self) -> list[str]:
        headers = [h for h in self._function.template_headers if h.named_children]
        if self._function.in_class:  # those of the class are around it already
            headers = headers[-1:] if self._is_template_itself() else []
        more = "class msl_M, class msl_P" + (", class msl_O" if self._has_object else "")
        if not headers:
            return [f" template <{more}>"]
        lines = []
        for header in headers:
            inside = self._rewriter.unrenamed(header.start_byte, header.end_byte)
            if "..." in inside:
                raise NotCut("a template with a parameter pack")
            lines.append(f" template {inside}")
        lines[-1] = lines[-1].rstrip().removesuffix(">") + f", {more}>"
        return lines

    def _is_template_itself(self) -> bool:
        return self._definition().parent.type == "template_declaration"

    def take_parameters(self, text: Mapped) -> None:
        """Emits the variables of the parameters."""
        for position, ((node, start, end), kind) in enumerate(
            zip(self._triples, self._kinds, strict=True)
        ):
            identifier = declared_identifier(node.child_by_field_name("declarator"))
            if identifier is None:
                continue
            variable = self._body.variables.of[identifier.start_byte]
            name = variable.name
            if self._parameters.loaded_once(node, start, end) is not None:
                text.add(
                    f"const auto {name} = {self._parameters.name_given(identifier)}; (void){name};\n"
                )
            if kind is Kind.AGAIN:
                # Also declared at group level, where only its type matters.
                if self._kernel is not None:
                    text.add(f"{self._parameters.rematerialised(position)}\n")
                if variable.kind is Kind.THREAD:
                    self._arrays.allocate(variable, text, f"{_S}::decayed_t<decltype({name})>")
                    value = self._parameters.rematerialised(position)
                    text.add(
                        f"{_S}::each<true>(msl_g, msl_mask, [&](const {_S}::{lane_type(value)} msl_t) "
                        f"MSL_LANE_LOOP {{ {value} msl_lanes_{name}[msl_t.slot] = {name}; }});\n"
                    )
                continue
            if kind is Kind.THREAD:
                is_reference = variable.is_reference and (
                    variable.is_array or takes_reference(self._source, (node, start, end))
                )
                if is_reference:
                    text.add(
                        f"const auto msl_lanes_{name} = msl_pack.template get<{position}>();\n"
                    )
                else:
                    given = f"msl_from = msl_pack.template get<{position}>()"
                    value = "msl_from[msl_t.slot]"
                    if not _NEVER_INTEGER.search(self._source.masked_text(node)):
                        value = f"{_S}::implicitly<{_S}::decayed_t<decltype({name})>>({value})"
                    self._arrays.copy_parameter(name, given, value, text)
            elif variable.kind is Kind.THREAD:
                self._arrays.copy_parameter(name, f"msl_from = {name}", "msl_from", text)

    def _find_result(self) -> Kind | None:
        """Returns how the result varies; None if there is none."""
        returned = self._function.declarator.parent
        type_node = self._definition().child_by_field_name("type")
        if self._kernel is not None or (
            type_node is not None
            and self._source.masked_text(type_node) == "void"
            and returned.type != "pointer_declarator"
        ):
            return None
        return Kind.THREAD

    def _definition(self):
        node = self._function.body.parent
        while node.type != "function_definition":
            node = node.parent
        return node

    def _result_type(self) -> str:
        definition = self._definition()
        type_node = definition.child_by_field_name("type")
        if type_node is None:  # which the C++ compiler reports
            raise NotCut("a function without a type")
        declarator = definition.child_by_field_name("declarator")
        stars = ""
        while declarator.type in ("pointer_declarator", "reference_declarator"):
            if declarator.type == "reference_declarator":
                raise NotCut("a function that returns a reference")
            stars += "*"
            declarator = (
                declarator.child_by_field_name("declarator") or declarator.named_children[-1]
            )
        trailing = next((c for c in declarator.children if c.type == "trailing_return_type"), None)
        text = self._rewriter.unrenamed(type_node.start_byte, type_node.end_byte)
        if trailing is not None:
            inner = trailing.named_children[0]
            return self._rewriter.unrenamed(inner.start_byte, inner.end_byte)
        if re.search(r"\bauto\b", text):
            raise NotCut("a function whose result has the type 'auto'")
        return text + stars
