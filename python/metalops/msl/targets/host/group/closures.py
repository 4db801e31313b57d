"""Lambdas in which threads synchronise: closures (include/msl/host/closures.h), which all threads of a mask call
together.

A closure is written where the lambda stands, as a lambda that refers to the function's privatised variables. Variables
that the lambda captures by value and that may change are copied there. Its parameters are varying.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....analysis.program import (
    Function,
    declarator_kinds,
    declared_identifier,
    name_node,
    parameters_of,
    parameters_of_lambda,
    takes_reference,
)
from ....analysis.uniformity import Kind, NotCut, Variable
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import is_constexpr_if, is_mutable, walk
from .flow import Flow

_S = names.SUPPORT


def returns_of(node) -> Iterator:
    """Yields the return statements of a lambda_expression, without those of lambdas inside."""
    waiting = [node.child_by_field_name("body")]
    while waiting:
        node = waiting.pop()
        if node.type == "return_statement":
            yield node
        waiting += [c for c in node.children if c.type != "lambda_expression"]


class Closures(Flow):
    # ---- classification of lambdas ---------------------------------------------------------------

    def _closure_declared(self, node) -> Variable | None:
        """Returns the variable of a closure that a statement declares, or None."""
        if node.type != "declaration":
            return None
        for variable in self.body.declared_by(node):
            if variable.declared.lambda_expression in self.body.closures:
                return variable
        return None

    def _check_closures(self) -> None:
        """Raises NotCut for uses of lambdas in which threads synchronise that closures do not support."""
        for node in self.body.closures:
            self._check_parameters(node)
            if any(n.type == "*" for n in node.child_by_field_name("captures").children):
                raise NotCut("a lambda that has a copy of its object, in which threads meet")
            variable = self._variable_of(node)
            if variable is None:
                if not (self._is_called(node) or self._is_passed_on(node)):
                    raise NotCut("a lambda in which threads meet and that is not called")
                continue
            passed = [u for u in variable.declared.uses if not self._is_called(u)]
            if is_mutable(node) and passed:
                raise NotCut("a lambda that changes, in which threads meet and that is passed on")
            for use in passed:
                if use.parent.type != "lambda_capture_specifier" and not self._is_passed_on(use):
                    raise NotCut("a lambda in which threads meet and that is not called")

    def _check_parameters(self, node) -> None:
        generic = set()
        for parameter, _, _ in parameters_of_lambda(node):
            if parameter.type != "parameter_declaration":
                raise NotCut("a lambda with default arguments, in which threads meet")
            identifier = declared_identifier(parameter.child_by_field_name("declarator"))
            if parameter.child_by_field_name("type").type == "placeholder_type_specifier":
                generic.add(identifier and self.source.node_text(identifier))
        for inner in walk(node.child_by_field_name("body")) if generic else ():
            if inner.type == "template_argument_list" or (
                inner.type == "if_statement" and is_constexpr_if(inner)
            ):
                constant = inner.child_by_field_name("condition") or inner
                if any(self.source.node_text(n) in generic for n in walk(constant)):
                    raise NotCut("a lambda that is passed constants, in which threads meet")

    def _variable_of(self, node) -> Variable | None:
        """Returns the variable that a closure is declared as, or None."""
        declaration = node.parent.parent
        if node.parent.type != "init_declarator" or declaration.type != "declaration":
            return None
        if declaration.parent.type not in ("compound_statement", "case_statement"):
            return None
        variables = self.body.declared_by(declaration)
        if len(variables) != 1 or variables[0].value != node or variables[0].declared.kinds:
            return None
        type_node = variables[0].declared.type_node
        return variables[0] if type_node.type == "placeholder_type_specifier" else None

    @staticmethod
    def _is_called(node) -> bool:
        while node.parent.type == "parenthesized_expression":
            node = node.parent
        return (
            node.parent.type == "call_expression"
            and node.parent.child_by_field_name("function") == node
        )

    def _is_passed_on(self, node) -> bool:
        """Returns true if it is an argument of functions that accept any object."""
        call = node.parent.parent
        if node.parent.type != "argument_list" or call.type != "call_expression":
            return False
        called = self.call_graph.callees(call)
        if not called or len(called) != len(self.call_graph.called(call)):
            return False
        position = call.child_by_field_name("arguments").named_children.index(node)
        for function in called:
            parameters = parameters_of(self.source, function)
            if function.name == "operator()" or position >= len(parameters):
                return False
            if not self._takes_anything(function, parameters[position][0]):
                return False
        return bool(self.sync.meets(call))

    def _takes_anything(self, function: Function, parameter) -> bool:
        """Returns true if the type of a parameter is a template parameter of the function."""
        kinds = declarator_kinds(parameter.child_by_field_name("declarator"))
        name = name_node(parameter.child_by_field_name("type"))
        declaration = self.call_graph.scopes(function.node).declaration_of(name)
        return (
            kinds in ([], ["reference"])
            and declaration is not None
            and any(
                h.start_byte <= declaration.identifier.start_byte < h.end_byte
                for h in function.template_headers[-1:]
            )
        )

    # ---- closures --------------------------------------------------------------------------------

    def _closure(self, node, name: str, out: Mapped) -> None:
        """Writes the closure of a lambda_expression."""
        self.groups.has_closures = True
        copies = self._copy_captured(node, out)
        plain = self.context.new("plain")
        out.add(f"const auto {plain} = [&] {{ return ")
        out.add(self.rewriter.expression(node))
        out.add(f"; }}; const auto {name} = {_S}::closure([&](auto, const {_S}::Threads&, ")
        out.add("const auto& msl_mask, const auto& msl_pack")
        given = []
        for position, (parameter, start, end) in enumerate(parameters_of_lambda(node)):
            out.add(", ")
            out.add(self.rewriter.copy(start, end))
            identifier = declared_identifier(parameter.child_by_field_name("declarator"))
            if identifier is None:
                given.append(f"msl_unnamed_{position}")
                out.add(f" {given[-1]}")
            else:
                given.append(self.source.node_text(identifier))
        arguments = ", ".join(f"static_cast<decltype({g})&&>({g})" for g in given)
        result = f"{_S}::decayed_t<decltype({plain}()({arguments}))>"
        with self.masks.closure(self._gives_value(node)):
            if self.masks.result is Kind.THREAD:
                out.add(f") -> {_S}::Lanes<{result}> {{\n")
                out.add(f"{_S}::Lanes<{result}> msl_result(msl_g);\n")
                out.add(f"const auto msl_at_result = {_S}::at(msl_result);\n")
            else:
                out.add(f") -> {_S}::Nothing {{\n")
            for copy in copies:
                out.add(f"{copy}\n")
            for position, parameter in enumerate(parameters_of_lambda(node)):
                self._take_argument(position, parameter, out)
            self._run(node.child_by_field_name("body"), self.body.returns_of[node.id], out)
        out.add(f"}}, {plain}); (void){name};\n")

    def _gives_value(self, node) -> bool:
        """Returns true if a lambda has a result."""
        declarator = node.child_by_field_name("declarator")
        for child in declarator.children if declarator is not None else ():
            if child.type == "trailing_return_type":
                return self.source.masked_text(child.named_children[0]).strip() != "void"
        returned = [r.named_children[0] for r in returns_of(node) if r.named_children]
        if any(n.type == "call_expression" and self._gives_nothing(n) for n in returned):
            raise NotCut("a lambda that returns what has no value, in which threads meet")
        return bool(returned)

    def _gives_nothing(self, call) -> bool:
        called = self.call_graph.called(call)
        return any(
            not self._gives_value(f)
            if not isinstance(f, Function)
            else self.source.masked_text(f.node.child_by_field_name("type") or f.node) == "void"
            for f in called
        )

    def _take_argument(self, position: int, parameter, out: Mapped) -> None:
        identifier = declared_identifier(parameter[0].child_by_field_name("declarator"))
        if identifier is None:
            return
        variable = self.body.of[identifier.start_byte]
        given = f"msl_pack.template get<{position}>()"
        if variable.is_reference and (variable.is_array or takes_reference(self.source, parameter)):
            out.add(f"const auto msl_lanes_{variable.name} = {given};\n")
        else:
            self._copy_parameter(variable.name, f"msl_from = {given}", "msl_from[msl_t.slot]", out)

    def _copy_captured(self, node, out: Mapped) -> list[str]:
        """Copies variables that a lambda captures by value and that may change; returns the declarations of the copies
        inside of it."""
        inside = []
        copied = sorted(self.body.copied_by(node), key=lambda v: v.identifier.start_byte)
        changing = [
            v
            for v in copied
            if v.kind is not Kind.AGAIN and (is_mutable(node) or self.body.may_change(v))
        ]
        self._check_remade(node, changing)
        for variable in changing:
            name, copy = variable.name, self.context.new("captured")
            if variable.kind is Kind.GROUP:
                out.add(f"const auto {copy} = {name};\n")
                inside.append(f"const auto& {name} = {copy};")
                continue
            if variable.is_reference and not variable.is_parameter:
                raise NotCut("a lambda that has a copy of what a variable refers to")
            out.add(
                f"const auto {copy} = {_S}::captured(msl_g, {self.masks.active}, "
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
        for variable in self.body.captured_by(node):
            value = variable.declared.lambda_expression
            if variable.kind is not Kind.AGAIN or value is None:
                continue
            if not self.body.captured_by(value).isdisjoint(changing):
                raise NotCut("a lambda that has a copy of what another one refers to")

    def _initialise_capture(self, capture, out: Mapped) -> str:
        if any(c.type == "&" for c in capture.children):
            raise NotCut("a lambda with a reference of its own, in which threads meet")
        value = capture.child_by_field_name("right")
        copy = self._value(value, self._lower(value, out), out)
        name = self.source.node_text(capture.child_by_field_name("left"))
        return f"const auto& msl_lanes_{name} = {copy}; auto& {name} = msl_lanes_{name}[0]; (void){name};"
