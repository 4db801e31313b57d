"""What functions do beside giving a result: what they may write, and where they keep memory of their own."""

from __future__ import annotations

from collections.abc import Iterator

from .calls import CallGraph
from .program import (
    Function,
    Program,
    declarator_kinds,
    declared_identifier,
    last_name,
    parameter_ranges,
)
from .regions import USES_MATRICES, Body, Kind, Variable, walk, without_parentheses

# Functions of the standard library that write to an argument.
_WRITERS = {
    "sincos": {1},
    "modf": {1},
    "frexp": {1},
    "fract": {1},
    "simdgroup_load": {0},
    "simdgroup_multiply": {0},
    "simdgroup_multiply_accumulate": {0},
}


def parameters_of(source, function: Function) -> list:
    parameters = function.declarator.child_by_field_name("parameters")
    return [p for p in parameter_ranges(parameters) if source.masked_text(p[0]).strip() != "void"]


class Effects:
    def __init__(self, program: Program, calls: CallGraph):
        self.program = program
        self.source = program.source
        self.calls = calls
        self._keeps: dict[int, bool] = {}

    def _called_name(self, call) -> str:
        return last_name(self.source, call.child_by_field_name("function"))

    def writes(self, call, position: int) -> bool:
        """Whether a call may change its argument."""
        functions = self.calls.callees(call)
        if not functions:
            return position in _WRITERS.get(self._called_name(call), ())
        for function in functions:
            parameters = parameters_of(self.source, function)
            if position < len(parameters) and self.takes_reference(parameters[position]):
                return True
        return False

    def is_static(self, function: Function) -> bool:
        """Whether a member function has no object."""
        return "static" in {
            self.source.node_text(c)
            for c in function.body.parent.children
            if c.type == "storage_class_specifier"
        }

    def members_of(self, function: Function) -> frozenset[str]:
        """Names of the members of a member function's object: variables and functions, not static ones."""
        scope = function.body.parent
        while scope.type not in ("class_specifier", "struct_specifier", "union_specifier"):
            scope = scope.parent
        return frozenset(self._members(scope, 0))

    def _members(self, scope, depth: int) -> Iterator[str]:
        for node in scope.child_by_field_name("body").named_children:
            if node.type == "template_declaration":
                node = node.named_children[-1]
            if node.type not in ("field_declaration", "function_definition", "declaration"):
                continue
            specifiers = {
                self.source.node_text(c)
                for c in node.children
                if c.type in ("storage_class_specifier", "type_qualifier")
            }
            if not specifiers & {"static", "constexpr"}:
                for declarator in node.children_by_field_name("declarator"):
                    identifier = declared_identifier(declarator)
                    if identifier is not None:
                        yield self.source.node_text(identifier)
        for base in scope.children:
            if base.type == "base_class_clause" and depth < 8:
                for name in base.named_children:
                    text = self.source.node_text(name).split("<")[0].split("::")[-1].strip()
                    for other in self.program.classes:
                        if other.name.split("<")[0].strip() == text:
                            yield from self._members(other.specifier, depth + 1)

    def takes_reference(self, parameter) -> bool:
        """Whether a parameter is a reference to what may be changed."""
        node, start, end = parameter
        kinds = declarator_kinds(node.child_by_field_name("declarator"))
        if kinds[:1] != ["reference"]:
            return False
        words = {w.text for w in self.source.words_in(start, end)}
        qualifiers = {self.source.node_text(c) for c in node.children if c.type == "type_qualifier"}
        return "const" not in qualifiers and "constant" not in words

    def is_pure(self, call) -> bool:
        """Whether a call changes nothing and gives the same result whoever calls it."""
        name = self._called_name(call)
        if "atomic" in name or USES_MATRICES.search(name):
            return False
        function = call.child_by_field_name("function")
        functions = self.calls.callees(call)
        if not functions:
            return function.type != "field_expression" or name in ("size", "length")
        return all(self._is_pure_function(f, set()) for f in functions)

    def _is_pure_function(self, function: Function, seen: set[int]) -> bool:
        key = function.node.start_byte
        if function.in_class or key in seen or self.calls.function_synchronises(function):
            return False
        for node in walk(function.body):
            if node.type in ("assignment_expression", "update_expression"):
                target = node.child_by_field_name("left") or node.child_by_field_name("argument")
                if any(
                    n.type in ("subscript_expression", "pointer_expression", "this")
                    or (n.type == "field_expression" and n.children[1].type == "->")
                    for n in walk(target)
                ):
                    return False
            if node.type == "call_expression":
                name = self._called_name(node)
                if "atomic" in name:
                    return False
                for callee in self.calls.callees(node):
                    if not self._is_pure_function(callee, {*seen, key}):
                        return False
        return not any(self.takes_reference(p) for p in parameters_of(self.source, function))

    def keeps_private_memory(self, function: Function) -> bool:
        """Whether a function, or one that it calls, has memory of its own at addresses that it computes."""
        key = function.node.start_byte
        if key not in self._keeps:
            self._keeps[key] = False  # while it is found out
            self._keeps[key] = any(
                self.is_computed_access(node, None)
                or (
                    node.type == "call_expression"
                    and any(map(self.keeps_private_memory, self.calls.callees(node)))
                )
                for node in walk(function.body)
            )
        return self._keeps[key]

    def is_computed_access(self, node, body: Body | None) -> bool:
        """Whether vector lanes that run this together might share private memory. body: whose variables are known."""
        kind = node.type
        if kind == "array_declarator":
            return node.parent.type in ("declaration", "init_declarator", "field_declaration")
        if kind == "for_range_loop":
            return True
        if kind == "subscript_expression":
            base = node.child_by_field_name("argument")
            indices = node.child_by_field_name("indices")
            if indices is not None and all(
                n.type == "number_literal" for n in indices.named_children
            ):
                base_leaf = without_parentheses(base)
                if base_leaf.type == "identifier":
                    return False
        elif kind == "pointer_expression" and node.children[0].type == "*":
            base = node.child_by_field_name("argument")
        else:
            return False
        while base.type in (
            "parenthesized_expression",
            "binary_expression",
            "subscript_expression",
            "field_expression",
        ):
            if base.type == "parenthesized_expression":
                base = base.named_children[0]
            else:
                base = base.child_by_field_name("left") or base.child_by_field_name("argument")
        if base.type != "identifier":
            return base.type not in ("cast_expression",)
        if body is None:
            return not self._points_to_shared(base)
        variable = body.of.get(base.start_byte)
        if variable is None:
            return False  # a constant of the program
        return not self._is_shared(variable)

    def _is_shared(self, variable: Variable) -> bool:
        if variable.is_of_group:
            return True
        kinds = declarator_kinds(variable.declarator) if variable.declarator is not None else []
        start = self.source.previous_code(variable.declaration.start_byte) + 1
        words = {w.text for w in self.source.words_in(start, variable.identifier.start_byte)}
        if words & {"device", "constant", "threadgroup"}:
            return True
        return variable.kind is Kind.THREAD and variable.conditions is not None and bool(kinds)

    def _points_to_shared(self, identifier) -> bool:
        """The same for a name in a function that is not looked at closely: a pointer whose declaration names the
        address space, and no other of that name."""
        function = identifier.parent
        while function is not None and function.type != "function_definition":
            function = function.parent
        if function is None:
            return True
        name = self.source.node_text(identifier)
        found = False
        for node in walk(function):
            if node.type not in ("parameter_declaration", "declaration"):
                continue
            start = self.source.previous_code(node.start_byte) + 1
            for declarator in node.children_by_field_name("declarator"):
                declared = declared_identifier(declarator)
                if declared is None or self.source.node_text(declared) != name:
                    continue
                words = {w.text for w in self.source.words_in(start, declared.start_byte)}
                if not words & {"device", "constant", "threadgroup"}:
                    return False
                found = True
        return found
