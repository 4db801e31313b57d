"""Side effects of functions: what they may write, and whether they are pure."""

from __future__ import annotations

from collections.abc import Iterator

from ..source.tree import walk
from .calls import CallGraph
from .program import (
    Function,
    Program,
    declared_identifier,
    last_name,
    parameters_of,
    parameters_of_lambda,
    takes_reference,
)
from .variables import USES_MATRICES

# Functions of the standard library that write to an argument, with the positions of those arguments.
_WRITERS = {
    "sincos": {1},
    "modf": {1},
    "frexp": {1},
    "fract": {1},
    "simdgroup_load": {0},
    "simdgroup_multiply": {0},
    "simdgroup_multiply_accumulate": {0},
    "run": {2},  # of matmul2d
    "reduce_rows": {1},
    "reduce_columns": {1},
}


class Effects:
    def __init__(self, program: Program, calls: CallGraph):
        self.program = program
        self.source = program.source
        self.calls = calls

    def _called_name(self, call) -> str:
        return last_name(self.source, call.child_by_field_name("function"))

    def writes(self, call, position: int) -> bool:
        """Returns true if a call may change its argument."""
        called = self.calls.called(call)
        if not called:
            return position in _WRITERS.get(self._called_name(call), ())
        return any(self._takes_reference(f, position) for f in called)

    def surely_writes(self, call, position: int) -> bool:
        """Returns true if every function that a call may mean may change its argument."""
        return all(self._takes_reference(f, position) for f in self.calls.called(call))

    def _takes_reference(self, function, position: int) -> bool:
        """function: a Function or the node of a lambda."""
        if isinstance(function, Function):
            return self.calls.lookup.takes_reference(function, position)
        parameters = parameters_of_lambda(function)
        return position < len(parameters) and takes_reference(self.source, parameters[position])

    def is_static(self, function: Function) -> bool:
        """Returns true if a member function is static."""
        return "static" in {
            self.source.node_text(c)
            for c in function.body.parent.children
            if c.type == "storage_class_specifier"
        }

    def members_of(self, function: Function) -> frozenset[str]:
        """Returns the names of the non-static members of a member function's object: variables and functions."""
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
                if c.type == "storage_class_specifier"
            }
            if "static" not in specifiers:
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

    def is_pure(self, call) -> bool:
        """Returns true if a call has no side effects and gives the same result in every thread."""
        name = self._called_name(call)
        if "atomic" in name or USES_MATRICES.search(name):
            return False
        function = call.child_by_field_name("function")
        functions = self.calls.called(call)
        if any(not isinstance(f, Function) for f in functions):
            return False
        if not functions:
            return function.type != "field_expression" or name in ("size", "length")
        return all(self._is_pure_function(f, set()) for f in functions)

    def _is_pure_function(self, function: Function, seen: set[int]) -> bool:
        key = function.node.start_byte
        if key in seen:
            return True  # unless something else in it has side effects
        if function.in_class or self.calls.function_synchronises(function):
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
        return not any(
            takes_reference(self.source, p) for p in parameters_of(self.source, function)
        )
