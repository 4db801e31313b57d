"""The lambdas in which threads synchronise, and how they are used."""

from __future__ import annotations

from collections.abc import Iterator

from ....analysis.cuts import NotCut
from ....analysis.program import (
    Function,
    declarator_kinds,
    declared_identifier,
    name_node,
    parameters_of,
    parameters_of_lambda,
)
from ....analysis.variables import Variable
from ....source.tree import is_constexpr_if, is_mutable, walk
from .context import FunctionContext


def returns_of(node) -> Iterator:
    """Yields the return statements of a lambda_expression, without those of lambdas inside."""
    waiting = [node.child_by_field_name("body")]
    while waiting:
        node = waiting.pop()
        if node.type == "return_statement":
            yield node
        waiting += [c for c in node.children if c.type != "lambda_expression"]


class ClosureUses:
    """Classifies lambdas in which threads synchronise."""

    def __init__(self, context: FunctionContext):
        self._body = context.body
        self._source = context.source
        self._call_graph = context.call_graph
        self._sync = context.sync

    def check(self) -> None:
        """Raises NotCut for uses of lambdas in which threads synchronise that closures do not support."""
        for node in self._body.cuts.closures:
            self._check_parameters(node)
            if any(n.type == "*" for n in node.child_by_field_name("captures").children):
                raise NotCut("a lambda that has a copy of its object, in which threads synchronise")
            variable = self._variable_of(node)
            if variable is None:
                if not (self._is_called(node) or self._is_passed_on(node)):
                    raise NotCut("a lambda in which threads synchronise and that is not called")
                continue
            passed = [u for u in variable.declared.uses if not self._is_called(u)]
            if is_mutable(node) and passed:
                raise NotCut(
                    "a lambda that changes, in which threads synchronise and that is passed on"
                )
            for use in passed:
                if use.parent.type != "lambda_capture_specifier" and not self._is_passed_on(use):
                    raise NotCut("a lambda in which threads synchronise and that is not called")

    def declared(self, node) -> Variable | None:
        """Returns the variable of a closure that a statement declares, or None."""
        if node.type != "declaration":
            return None
        for variable in self._body.variables.declared_by(node):
            if variable.declared.lambda_expression in self._body.cuts.closures:
                return variable
        return None

    def called(self, function, replaced) -> str | None:
        """Returns the name of the closure that is called, if it is certain, else None."""
        if function.type == "lambda_expression":
            return next(text for start, _, text in replaced if start == function.start_byte)
        variable = self._body.variables.variable_named(function)
        if variable is None or variable.declared.lambda_expression not in self._body.cuts.closures:
            return None
        return variable.name

    def gives_value(self, node) -> bool:
        """Returns true if a lambda has a result."""
        declarator = node.child_by_field_name("declarator")
        for child in declarator.children if declarator is not None else ():
            if child.type == "trailing_return_type":
                return self._source.masked_text(child.named_children[0]).strip() != "void"
        returned = [r.named_children[0] for r in returns_of(node) if r.named_children]
        if any(n.type == "call_expression" and self._gives_nothing(n) for n in returned):
            raise NotCut("a lambda that returns what has no value, in which threads synchronise")
        return bool(returned)

    def _check_parameters(self, node) -> None:
        generic = set()
        for parameter, _, _ in parameters_of_lambda(node):
            if parameter.type != "parameter_declaration":
                raise NotCut("a lambda with default arguments, in which threads synchronise")
            identifier = declared_identifier(parameter.child_by_field_name("declarator"))
            if parameter.child_by_field_name("type").type == "placeholder_type_specifier":
                generic.add(identifier and self._source.node_text(identifier))
        for inner in walk(node.child_by_field_name("body")) if generic else ():
            if inner.type == "template_argument_list" or (
                inner.type == "if_statement" and is_constexpr_if(inner)
            ):
                constant = inner.child_by_field_name("condition") or inner
                if any(self._source.node_text(n) in generic for n in walk(constant)):
                    raise NotCut("a lambda that is passed constants, in which threads synchronise")

    def _variable_of(self, node) -> Variable | None:
        """Returns the variable that a closure is declared as, or None."""
        declaration = node.parent.parent
        if node.parent.type != "init_declarator" or declaration.type != "declaration":
            return None
        if declaration.parent.type not in ("compound_statement", "case_statement"):
            return None
        variables = self._body.variables.declared_by(declaration)
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
        called = self._call_graph.callees(call)
        if not called or len(called) != len(self._call_graph.called(call)):
            return False
        position = call.child_by_field_name("arguments").named_children.index(node)
        for function in called:
            parameters = parameters_of(self._source, function)
            if function.name == "operator()" or position >= len(parameters):
                return False
            if not self._takes_anything(function, parameters[position][0]):
                return False
        return bool(self._sync.meets(call))

    def _takes_anything(self, function: Function, parameter) -> bool:
        """Returns true if the type of a parameter is a template parameter of the function."""
        kinds = declarator_kinds(parameter.child_by_field_name("declarator"))
        name = name_node(parameter.child_by_field_name("type"))
        declaration = self._call_graph.scopes(function.node).declaration_of(name)
        return (
            kinds in ([], ["reference"])
            and declaration is not None
            and any(
                h.start_byte <= declaration.identifier.start_byte < h.end_byte
                for h in function.template_headers[-1:]
            )
        )

    def _gives_nothing(self, call) -> bool:
        called = self._call_graph.called(call)
        return any(
            not self.gives_value(f)
            if not isinstance(f, Function)
            else self._source.masked_text(f.node.child_by_field_name("type") or f.node) == "void"
            for f in called
        )
