"""The group form of a function, which all threads of a group run together."""

from __future__ import annotations

import re

from ....analysis.program import Function, Kernel, declared_identifier, name_of, takes_reference
from ....analysis.uniformity import Kind, NotCut
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import walk
from .calls import name_in_group
from .closures import Closures
from .lanes import lane_type
from .masks import Masks

_S = names.SUPPORT


class Form(Closures):
    def __init__(
        self,
        groups,
        function: Function,
        kinds,
        again,
        key,
        kernel: Kernel | None = None,
    ):
        self._check(groups, function, kernel)
        super().__init__(groups, function, kinds, again, key, kernel)
        self.result = self._find_result()
        if self.result is Kind.THREAD:
            leave = "return msl_result;\n"
        else:
            leave = "return;\n" if kernel is not None else "return {};\n"
        self.masks = Masks(self.result, leave)
        self._check_closures()

    @staticmethod
    def _check(groups, function: Function, kernel: Kernel | None) -> None:
        source = groups.source
        groups.sync.check_hidden(function)
        if "::" in source.masked_text(name_of(function.declarator)):
            raise NotCut(f"the member function '{function.name}' is defined outside of its class")
        if function.name.startswith("operator") and function.name != "operator()":
            raise NotCut(f"'{function.name}' synchronises")
        if function.is_specialisation and kernel is None:
            raise NotCut(f"'{function.name}' has an explicit specialisation")
        for node in walk(function.body):
            if node.type in ("goto_statement", "labeled_statement"):
                raise NotCut("goto")
            if node.type == "subscript_expression" and node.parent.type == "assignment_expression":
                base = node.child_by_field_name("argument")
                callee = (
                    base.child_by_field_name("function") if base.type == "call_expression" else None
                )
                if callee is not None and callee.type == "primitive_type":
                    raise NotCut("a reference to an array")  # it is parsed as an assignment

    def write(self) -> None:
        function = self.function
        text = self.text
        for line in self._template_headers():
            text.add(line)
        result = "void"
        if self.result is Kind.THREAD:
            result = f"{_S}::Lanes<{_S}::decayed_t<{self._result_type()}>>"
        elif self.kernel is None:
            result = f"{_S}::Nothing"
        tags = "" if self.kernel is not None else self.groups.tags(self.kinds, self.again)
        static = "static " if function.in_class else ""
        text.add(
            f" {static}inline {result} {name_in_group(function.name)}({_S}::Kinds<{tags}>, "
            f"const {_S}::Threads& msl_g, const msl_M& msl_mask, const msl_P& msl_pack"
        )
        if self.has_object:
            text.add(", const msl_O msl_objects")
        for (node, start, end), kind in zip(self.context.parameters, self.kinds, strict=True):
            if kind is not Kind.AGAIN or self.kernel is None:
                text.add(", ")
                renamed = ()
                if (name := self.parameters.loaded_once(node, start, end)) is not None:
                    renamed = [(name.start_byte, name.end_byte, self.parameters.name_given(name))]
                text.add(self.rewriter.copy(start, end, renamed))
        if self.kernel is not None and self.kernel.threadgroup_variables:
            text.add(f", {names.ABI}::Group& msl_group")
        text.add(") {\n")
        if self.kernel is None or not self.kernel.threadgroup_variables:
            text.add(f"{names.ABI}::Group& msl_group = *msl_g.group; ")
        if self.has_object:
            text.add("auto& msl_self = msl_objects[0]; (void)msl_self;\n")
        text.add(
            f"const {names.ABI}::Launch* const msl_launch = msl_g.launch; "
            f"const {_S}::Lane msl_t{{}}; (void)msl_group, (void)msl_launch, (void)msl_t;\n"
        )
        if self.result is Kind.THREAD:
            text.add(f"{_S}::Lanes<{_S}::decayed_t<{self._result_type()}>> msl_result(msl_g);\n")
            text.add(f"const auto msl_at_result = {_S}::at(msl_result);\n")
        self._take_parameters(text)
        self._run(function.body, self.body.returns, text)
        text.add("}\n")

    def _template_headers(self) -> list[str]:
        headers = [h for h in self.function.template_headers if h.named_children]
        if self.function.in_class:  # those of the class are around it already
            headers = headers[-1:] if self._is_template_itself() else []
        more = "class msl_M, class msl_P" + (", class msl_O" if self.has_object else "")
        if not headers:
            return [f" template <{more}>"]
        lines = []
        for header in headers:
            inside = self.rewriter.unrenamed(header.start_byte, header.end_byte)
            if "..." in inside:
                raise NotCut("a template with a parameter pack")
            lines.append(f" template {inside}")
        lines[-1] = lines[-1].rstrip().removesuffix(">") + f", {more}>"
        return lines

    def _is_template_itself(self) -> bool:
        return self._definition().parent.type == "template_declaration"

    def _take_parameters(self, text: Mapped) -> None:
        for position, ((node, start, end), kind) in enumerate(
            zip(self.context.parameters, self.kinds, strict=True)
        ):
            identifier = declared_identifier(node.child_by_field_name("declarator"))
            if identifier is None:
                continue
            variable = self.body.of[identifier.start_byte]
            name = variable.name
            if self.parameters.loaded_once(node, start, end) is not None:
                text.add(
                    f"const auto {name} = {self.parameters.name_given(identifier)}; (void){name};\n"
                )
            if kind is Kind.AGAIN:
                # Also declared at group level, where only its type matters.
                if self.kernel is not None:
                    text.add(f"{self.parameters.rematerialised(position)}\n")
                if variable.kind is Kind.THREAD:
                    self._keep(variable, text, f"{_S}::decayed_t<decltype({name})>")
                    value = self.parameters.rematerialised(position)
                    text.add(
                        f"{_S}::each<true>(msl_g, msl_mask, [&](const {_S}::{lane_type(value)} msl_t) "
                        f"MSL_LANE_LOOP {{ {value} msl_lanes_{name}[msl_t.slot] = {name}; }});\n"
                    )
                continue
            if kind is Kind.THREAD:
                is_reference = variable.is_reference and (
                    variable.is_array or takes_reference(self.source, (node, start, end))
                )
                if is_reference:
                    text.add(
                        f"const auto msl_lanes_{name} = msl_pack.template get<{position}>();\n"
                    )
                else:
                    given = f"msl_from = msl_pack.template get<{position}>()"
                    self._copy_parameter(name, given, "msl_from[msl_t.slot]", text)
            elif variable.kind is Kind.THREAD:
                self._copy_parameter(name, f"msl_from = {name}", "msl_from", text)

    # ---- results ---------------------------------------------------------------------------------

    def _find_result(self) -> Kind | None:
        """Returns how the result varies; None if there is none."""
        returned = self.function.declarator.parent
        type_node = self._definition().child_by_field_name("type")
        if self.kernel is not None or (
            type_node is not None
            and self.source.masked_text(type_node) == "void"
            and returned.type != "pointer_declarator"
        ):
            return None
        return Kind.THREAD

    def _definition(self):
        node = self.function.body.parent
        while node.type != "function_definition":
            node = node.parent
        return node

    def _result_type(self) -> str:
        definition = self._definition()
        type_node = definition.child_by_field_name("type")
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
        text = self.rewriter.unrenamed(type_node.start_byte, type_node.end_byte)
        if trailing is not None:
            inner = trailing.named_children[0]
            return self.rewriter.unrenamed(inner.start_byte, inner.end_byte)
        if re.search(r"\bauto\b", text):
            raise NotCut("a function whose result has the type 'auto'")
        return text + stars
